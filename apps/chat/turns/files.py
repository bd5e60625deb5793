"""The files that people added to conversations: a folder for each conversation, read and searched by the index's stage.

They are searched before whatever the turn's mode searches, survive a restart, and go with their conversation.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from apps.chat.config import ChatServiceConfig
from apps.chat.turns.store import TurnRequest
from indexes import open_retriever
from steprag.agent.retriever import GIVEN, GivenFile, Retriever, TakesFiles
from steprag.errors import DataError
from steprag.records.turns import Turn

FOLDER = ".files"
"""In the run folder; what begins with a dot is no result of the run."""
_COMING = ".coming-"
FILES, INDEX, BOTH = SOURCES = ("files", "index", "both")
"""What a turn of a conversation with files searches: these alone, the index alone, or these first."""
RANKED = 16
"""Conversations whose ranking stays in memory."""
AT_ONCE = 2
"""Files that are read at one time."""


class ConversationFiles:
    """All conversations' files. `folder` None: they are kept in a temporary one, which goes with this object."""

    def __init__(self, folder: Path | None, limits: ChatServiceConfig) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="steprag-chat-")
        self._folder = folder / FOLDER if folder else Path(self._temporary.name if self._temporary else "")
        for left in self._folder.glob(f"{_COMING}*"):  # by a kill
            shutil.rmtree(left)
        self._limits, self._slots = limits, asyncio.Semaphore(AT_ONCE)
        self._opened: dict[str, TakesFiles] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.endings = self._at(".none").endings
        """Of the names of files that are taken."""

    def new_place(self) -> Path:
        """Where a file may be written before it is taken."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_COMING, dir=self._folder)) / "file"

    def conversations(self) -> tuple[str, ...]:
        """Ids of those that have files."""
        there = self._folder.iterdir() if self._folder.is_dir() else ()
        return tuple(one.name for one in there if not one.name.startswith(".") and self.of(one.name))

    def of(self, conversation: str) -> tuple[GivenFile, ...]:
        """A conversation's files, the oldest first."""
        there = conversation in self._opened or (self._folder / conversation).is_dir()
        return self._at(conversation).files() if there else ()

    def searched(self, one: TurnRequest | Turn, other: Retriever) -> Retriever:
        """What a turn searches (`SOURCES`): the conversation's files, then `other`; `other` alone where it has none."""
        conversation = one.conversation
        if one.source == INDEX or not self.of(conversation):
            return other
        self._opened[conversation] = found = self._opened.pop(conversation)  # now the last
        for old in list(self._opened.values())[:-RANKED]:
            old.rest()
        return found.before(other, alone=one.source == FILES)

    async def take(self, conversation: str, file: Path, name: str) -> GivenFile:
        """Reads a file and adds it. Raises DataError where it gives no text, or there are too many."""
        async with self._lock(conversation), self._slots:
            if len(self.of(conversation)) >= self._limits.files:
                raise DataError(name, f"is one too many: a conversation has at most {self._limits.files} files")
            return await asyncio.to_thread(self._at(conversation).take, file, name, self._limits.file_passages)

    def path(self, conversation: str, file_id: str) -> Path | None:
        """Where a file stands."""
        return self._at(conversation).document(f"{file_id}/") if self.of(conversation) else None

    async def remove(self, conversation: str, file_id: str) -> None:
        """Deletes one file."""
        if self.of(conversation):
            async with self._lock(conversation):
                await asyncio.to_thread(self._at(conversation).remove, file_id)

    async def forget(self, conversation: str) -> None:
        """Deletes all files of a conversation."""
        async with self._lock(conversation):
            self._opened.pop(conversation, None)
            if (folder := self._folder / conversation).is_dir():
                folder.rename(gone := self.new_place())  # at once: a kill in the middle leaves no half
                await asyncio.to_thread(shutil.rmtree, gone.parent)
        self._locks.pop(conversation, None)

    def _lock(self, conversation: str) -> asyncio.Lock:
        return self._locks.setdefault(conversation, asyncio.Lock())

    def _at(self, conversation: str) -> TakesFiles:
        """The one object of a conversation's folder."""
        if conversation not in self._opened:
            opened = open_retriever(f"{GIVEN}{self._folder / conversation}")
            assert isinstance(opened, TakesFiles)
            self._opened[conversation] = opened
        return self._opened[conversation]
