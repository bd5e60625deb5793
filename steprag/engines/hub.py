"""What is fetched from the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from steprag.errors import NO_ROOM, ConfigError, quoted

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""What a language model's folder is read from: no code and no pickle."""


@contextmanager
def asking_the_hub(what: str, remedy: str) -> Iterator[None]:
    """Turns an error of the hub's client into a ConfigError of one line about `what`."""
    # The root of whichever HTTP library the hub's client uses.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        yield
    # ValueError: a malformed id. RuntimeError: its store of large files (Xet) is out of reach.
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"{what}: {reason[:200]} ({remedy})") from None


def fetched(hub: str, files: Sequence[str], what: str) -> Path:
    """The folder of `files` (patterns) of `hub`, fetched unless it is on this machine; its name is the commit.

    Raises ConfigError, which names `what`, if it is neither here nor on the hub.
    """
    from huggingface_hub import snapshot_download

    problem = f"{what} {quoted(hub)}: not on this machine and not fetched"
    with asking_the_hub(problem, "download it elsewhere and give its folder"):
        return Path(snapshot_download(hub, allow_patterns=list(files)))
