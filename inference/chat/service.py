"""What the routes of the service share."""

from __future__ import annotations

from dataclasses import dataclass

from inference.chat.config import ChatServiceConfig
from inference.chat.desk import Desk, Full
from inference.chat.live import LiveTurn
from inference.chat.store import TurnRequest
from steprag.errors import quoted
from steprag.types import Turn
from steprag.web.guard import Door
from steprag.web.replies import ApiError


@dataclass(frozen=True)
class ChatService:
    """A service's parts. `model`, `index`: what answers, in words. `mode`: the one that counts where none is asked
    for.
    """

    desk: Desk
    door: Door
    limits: ChatServiceConfig
    model: str
    index: str
    mode: str
    version: str

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the modes there are."""
        return tuple(self.desk.chat.modes)

    def take(self, request: TurnRequest) -> LiveTurn:
        """Accepts a turn. Raises ApiError: 422 for a mode or length that is not allowed, 429 where too many wait."""
        if request.mode not in self.desk.chat.modes:
            known = ", ".join(self.modes)
            raise ApiError(422, "no_such_mode", f"mode {quoted(request.mode)} is not one of {known}", param="mode")
        if len(request.asked) > (most := self.limits.question_chars):
            raise ApiError(422, "too_long", f"a question of {len(request.asked)} characters; at most {most}")
        try:
            return self.desk.accept(request)
        except Full:
            raise ApiError(429, "busy", "too many questions wait already", after=2) from None

    def ended(self, turn_id: str) -> Turn:
        """A turn that ended. Raises ApiError: 409 while it is played, 404 where there is none."""
        turn = self.desk.chat.store.get(turn_id)
        if turn is not None:
            return turn
        if self.desk.live(turn_id):
            raise ApiError(409, "not_ended", "the turn is not over")
        raise ApiError(404, "no_such_turn", "there is no such turn")
