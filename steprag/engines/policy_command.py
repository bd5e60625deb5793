"""`steprag policy serve | convert | weights`: the engines by hand."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from steprag.config.load import parse_arguments
from steprag.console.progress import say_next
from steprag.console.stop_guard import ended_within
from steprag.engines.launch import ENGINES, EngineSpec
from steprag.engines.models import EMBEDDED, resolve_model
from steprag.engines.outlive_guard import GRACE_SECONDS
from steprag.engines.server import serving_us
from steprag.errors import ConfigError

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `serve`, `convert` or `weights`; results (URL, path) go to standard output, one a line."""
    args = parse_arguments(_parser(), (sys.argv[1:] if argv is None else argv) or ["--help"])
    return {"serve": _serve, "convert": _convert, "weights": _weights}[args.action](args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="steprag policy", description="Serve a policy, or convert its weights.")
    actions = parser.add_subparsers(dest="action", required=True)
    serve = actions.add_parser(
        "serve", allow_abbrev=False, help="serve a model over an OpenAI-compatible API until Ctrl-C"
    )
    serve.add_argument("--model", default=EMBEDDED, help="embedded name, .gguf, folder, adapter folder or hub id")
    serve.add_argument("--engine", choices=ENGINES, default="llamacpp")
    serve.add_argument("--adapter", help="PEFT LoRA folder or GGUF adapter")
    serve.add_argument("--host", default="127.0.0.1", help="beyond this machine only with --api_key_env")
    serve.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    serve.add_argument("--parallel", type=int, default=4, help="requests worked on at once")
    serve.add_argument("--context", type=int, default=2048, help="tokens a request may have, answer included")
    serve.add_argument("--threads", type=int, help="CPU threads; default all")
    serve.add_argument(
        "--api_key_env",
        help="environment variable with the key that clients must send; without it a new key is made and printed",
    )
    convert = actions.add_parser(
        "convert", allow_abbrev=False, help="turn a PEFT LoRA folder into a GGUF adapter, print its path"
    )
    convert.add_argument("--adapter", required=True, type=Path)
    convert.add_argument("--model", help="its base, where the adapter's own note is wrong on this machine")
    weights = actions.add_parser(
        "weights", allow_abbrev=False, help="write a model as a Hugging Face folder, print its path"
    )
    weights.add_argument("--model", default=EMBEDDED)
    weights.add_argument("--out", type=Path, help="folder to make; default: the cache")
    return parser


def _serve(args: argparse.Namespace) -> int:
    options = {name: value for name, value in vars(args).items() if name != "action"}
    # `kill` ends us as Ctrl-C does, so that the engine is stopped in order; at once is not needed, the pipe sees to it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ended_within(GRACE_SECONDS), serving_us(EngineSpec(**options)) as endpoint:
            sys.stdout.write("".join(f"{line}\n" for line in (endpoint.base_url, endpoint.key) if line))
            sys.stdout.flush()
            told = f"; clients need its key: export OPENAI_API_KEY={endpoint.key}" if endpoint.key else ""
            log.info("serving %s with %s%s; Ctrl-C stops it", endpoint.model, endpoint.engine, told)
            threading.Event().wait()
    except KeyboardInterrupt:
        return 0
    return 0


def _convert(args: argparse.Namespace) -> int:
    from steprag.engines.adapters import gguf_adapter

    files = resolve_model(args.model, args.adapter) if args.model else resolve_model(args.adapter)
    if files.adapter is None:
        raise ConfigError(f"{args.adapter} is no adapter; give the PEFT folder, which holds adapter_config.json")
    made = gguf_adapter(files.adapter, files)
    sys.stdout.write(f"{made}\n")
    say_next("policy", "serve", "--adapter", made)
    return 0


def _weights(args: argparse.Namespace) -> int:
    from steprag.engines.weights import base_weights, check_weights, hf_weights

    files = resolve_model(args.model)
    if files.hf:
        check_weights(files)
    made = base_weights(files) if files.hf else hf_weights(args.model, args.out)
    sys.stdout.write(f"{made}\n")
    say_next("policy", "serve", made)
    return 0
