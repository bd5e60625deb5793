"""Publishing a pairs folder on the Hugging Face hub. Nothing is sent unless `--push` names a repository."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from steprag.console.progress import say
from steprag.errors import ConfigError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FILES = ["*.jsonl", "README.md", "report.json", "leakage.json", "manifest.json", "plot_*.png", "*.yaml"]
"""What is sent of a folder. Locks, metrics and refused rows stay."""
KEPT_BACK = ["metrics.jsonl", "refused.jsonl"]


def add_push_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--push REPO` and `--public`, which `push_if_asked` reads."""
    parser.add_argument("--push", metavar="REPO", help="publish as OWNER/NAME on the hub; needs HF_TOKEN [off]")
    parser.add_argument("--public", action="store_true", help="with --push: a public repository, not a private one")


def push_if_asked(arguments: argparse.Namespace, folder: Path) -> None:
    """Publishes the folder if the options say so. Raises ConfigError where the hub refuses."""
    if not arguments.push:
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        push(folder, arguments.push, HfApi(), private=not arguments.public)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--push {arguments.push}: {reason[:200]} (is HF_TOKEN set, and may it write?)") from None


def push(folder: Path, repo: str, hub: HfApi, *, private: bool) -> None:
    """Makes the repository if there is none, and sends the folder's files in one commit."""
    hub.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    hub.upload_folder(
        repo_id=repo,
        repo_type="dataset",
        folder_path=str(folder),
        allow_patterns=FILES,
        ignore_patterns=KEPT_BACK,
        commit_message="Preference pairs with their report and card",
    )
    say(f"pairs: {folder} is published as data set {repo}")
