"""The embedded engine as a process: llama.cpp's own HTTP server, inside the wheel `xllamacpp`.

`python -m steprag.engines.llamacpp --model M.gguf …` loads, writes one line `{"url": …}` to standard output and serves
until its standard input closes (see `outlive_guard`). A process of its own, because a crash in native code, its threads
and its memory must not be those of a search or a trainer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from steprag.engines.outlive_guard import exit_at_once, wait_for_parent
from steprag.engines.threads import threads_for

log = logging.getLogger(__name__)

_ERRORS_ONLY = 1  # llama.cpp's verbosity; 3 logs every request


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the parent goes; returns 1 if the model or adapter does not load (llama.cpp logs why)."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, exit_at_once)
    # By name: the wheel is one compiled module without type stubs, so its attributes are unknown to a type checker.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    try:
        server = xllamacpp.Server(_params(xllamacpp, args))
    except RuntimeError as error:
        log.error("%s", error)
        return 1
    sys.stdout.write(json.dumps({"url": server.listening_address}) + "\n")
    sys.stdout.flush()
    wait_for_parent()
    # Not a return: the server's destructor waits for requests in flight, and nobody is left to read them.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="steprag.engines.llamacpp")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--adapter", help="GGUF LoRA adapter")
    parser.add_argument("--beside", action="append", default=[], help="GGUF adapter for requests that ask for it")
    parser.add_argument("--alias", default="policy")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048, help="tokens per slot")
    parser.add_argument("--steady", action="store_true", help="one request at a time, where no GPU is")
    parser.add_argument("--threads", type=int, default=threads_for(None))
    parser.add_argument("--api_key_env", help="environment variable that holds the key clients must send")
    return parser


def _params(xllamacpp: Any, args: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = {args.alias}
    scales = [*([(args.adapter, 1.0)] if args.adapter else []), *((path, 0.0) for path in args.beside)]
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in scales]
    params.hostnames = [args.host]
    params.port = args.port
    gpu = any("GPU" in device["type"].name for device in xllamacpp.get_device_info())
    params.n_parallel = args.parallel if gpu or not args.steady else 1
    params.n_ctx = params.n_parallel * args.context
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    # Greedy steps must not depend on what was served before, or beside. For caches of float16 and float32, llama.cpp
    # computes the attention of one token, of some, and of 64 or more in three ways, so a prompt of which a part is
    # cached gets other scores. Of bfloat16 it computes all alike. Among the tokens of other requests scores differ too:
    # on a processor, where a batch gains next to nothing, steady requests are computed one by one.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_BF16
    params.verbosity = _ERRORS_ONLY
    _close_doors(params, args.api_key_env)
    return params


def _close_doors(params: Any, api_key_env: str | None) -> None:
    """Serve the API alone. The defaults offer a web page and let any web site's script read the answers (CORS *)."""
    params.ui = False
    params.endpoint_slots = False
    params.cors_origins = ""
    params.cors_credentials = False
    if api_key_env:
        params.api_keys = [os.environ[api_key_env]]


if __name__ == "__main__":
    sys.exit(main())
