"""Models fetched from the hub as a folder on this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from steprag.errors import ConfigError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""What a language model's folder is read from: no code and no pickle."""


def fetched(hub: str, files: Sequence[str], what: str) -> Path:
    """The folder of `files` (patterns) of `hub`, fetched unless it is on this machine; its name is the commit.

    Raises ConfigError, with `what` it was wanted for, where it is neither here nor to be had.
    """
    from huggingface_hub import snapshot_download

    # The root of whichever HTTP library the hub's client uses.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        return Path(snapshot_download(hub, allow_patterns=list(files)))
    except (HTTPError, OSError, ValueError) as error:  # ValueError: the hub's word for a malformed id
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{what} {hub!r}: not on this machine and not fetched: {reason[:200]}"
                          " (download it elsewhere and give its folder)") from None  # fmt: skip
