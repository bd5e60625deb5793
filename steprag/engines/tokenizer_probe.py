"""A child process that tries a stranger's `tokenizer.json` before it is loaded: its library, written in Rust, aborts
the process for some, and for others takes all memory or never ends. Run as a file; it imports nothing of this package.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

SECONDS, MEMORY = 60, 8 << 30
"""What loading a tokenizer and encoding `TEXTS` may take."""
TEXTS = ("What is asked?\n\u00e9 \u4e2d\U0001f600 1990", *(chr(code) * 48 + "\0" for code in range(32, 127)))
"""Runs of a character show patterns that do not end, and replacements that grow."""


def problem_of(file: Path) -> str | None:
    """Why a tokenizer ends the process that uses it, in a few words; None where it does not. A tokenizer without
    patterns and replacements is not tried.
    """
    facts = file.stat()
    return _problem(file, facts.st_size, facts.st_mtime_ns)


@lru_cache
def _problem(file: Path, *_: int) -> str | None:
    content = file.read_bytes()
    if b'"Replace"' not in content and b'"Regex"' not in content:
        return None
    command = [sys.executable, "-I", __file__, str(file)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"takes more than {SECONDS} s for a few words"
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    if ended.returncode == 0 or (ended.returncode == 1 and not any("PanicException" in line for line in said)):
        return None  # or the library refuses the file in order: whoever loads it says so
    return f"ends the process that uses it: {(said or ['no memory'])[0][:120]}"


def main(path: str) -> None:
    from tokenizers import Tokenizer

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer = Tokenizer.from_file(path)
    for text in TEXTS:
        tokenizer.encode(text)


if __name__ == "__main__":
    main(sys.argv[1])
