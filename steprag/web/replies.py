"""What our web services answer: JSON, errors of one shape, and the sign-in of a page's browser."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException as StarletteHTTPException

from steprag.errors import StepragError
from steprag.web.guard import Door, error_body


class SessionBody(BaseModel):
    """`POST /api/session`."""

    model_config = ConfigDict(extra="forbid")
    token: str


class ApiError(Exception):
    """A refusal in the shape of the OpenAI API. `code` is for programs, the message for people."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.after = status, code, param, after

    def reply(self) -> Response:
        """The response; with `Retry-After` where `after` says when to come again."""
        kind = (
            "invalid_request_error" if self.status < 429 else "rate_limit_error" if self.status == 429 else "api_error"
        )
        headers = {} if self.after is None else {"Retry-After": str(self.after)}
        return as_json(error_body(str(self), kind, self.code, self.param), self.status, headers)


def as_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response. Half a surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, headers, media_type="application/json")


def session_route(door: Door) -> APIRouter:
    """`POST /api/session`: signs a browser in that knows the token."""
    router = APIRouter(prefix="/api")

    @router.post("/session", status_code=204)
    async def session(body: SessionBody) -> Response:
        if not door.knows(body.token):
            raise ApiError(401, "no_token", "this is not the service's token")
        return Response(status_code=204, headers={"Set-Cookie": door.set_cookie()})

    return router


def tell_errors(app: FastAPI, malformed_status: dict[str, int] | None = None) -> None:
    """Errors of every route in one shape. `malformed_status`: by the beginning of a path, the status of a request that
    is not as it should be; 422 elsewhere.
    """
    statuses = malformed_status or {}

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.reply()

    @app.exception_handler(StarletteHTTPException)
    async def plain(request: Request, error: StarletteHTTPException) -> Response:
        return ApiError(error.status_code, "http", str(error.detail)).reply()

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]  # the rest, and what was sent, would only repeat the request
        where = ".".join(str(part) for part in first["loc"][1:])
        path = request.url.path
        status = next((status for start, status in statuses.items() if path.startswith(start)), 422)
        return ApiError(status, "malformed", f"{where}: {first['msg'].lower()}", param=where or None).reply()

    @app.exception_handler(StepragError)
    async def failed(request: Request, error: StepragError) -> Response:
        return ApiError(500, "failed", str(error)).reply()
