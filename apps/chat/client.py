"""`steprag chat URL`: a conversation with a service of `steprag serve` in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from steprag.agent.citations import headed
from steprag.config.load import parse_arguments
from steprag.errors import ConfigError, PolicyUnavailable
from steprag.net.hosts import checked_url
from steprag.records.json_text import decoded

if TYPE_CHECKING:
    import httpx2

HELP = "/mode NAME chooses what is done with a message, /new starts over; Ctrl-C stops a reply, Ctrl-D ends"


def _concluded(answer: dict[str, Any]) -> str:
    cited = "".join(f" [{one['n']}]" for one in answer["sources"] if one["cited"])
    return f"= {headed(answer['content'], answer.get('lacks'))}{cited}\n"


SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "question": lambda event: f"({event['question']})\n" if event["question"] != event["asked"] else "",
    "step.delta": lambda event: event["text"],
    "step.finished": lambda event: "\n",
    "passages": lambda event: "".join(f"  [{one['n']}] {one['title'] or one['id']}\n" for one in event["items"]),
    "answer": lambda event: _concluded(event) if event["sources"] or "lacks" in event else "",
    "turn.failed": lambda event: f"\nfailed: {event['message']}\n",
    "turn.finished": lambda event: f"\nno answer: {event['finish']}\n" if event["finish"] != "answer" else "",
}  # fmt: skip
"""What a terminal shows of an event."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag chat", description=f"Talk to a service of steprag serve. {HELP}.")
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:8100", help="its address; $STEPRAG_TOKEN: its token"
    )
    given = parse_arguments(parser, argv)
    import httpx2  # two HTTP libraries, which no help needs

    from steprag.net.bounded_http import certificates, proxy_of
    from steprag.policy.client import api_key

    try:
        url = checked_url(given.url.partition("#")[0].rstrip("/"), "URL")
        headers = {"Authorization": f"Bearer {api_key('STEPRAG_TOKEN', url)}"}
        web: dict[str, Any] = {"trust_env": False, "proxy": proxy_of(url), "verify": certificates()}
        with httpx2.Client(base_url=url, headers=headers, timeout=60, **web) as client:
            return _talk(client)
    except httpx2.TransportError as error:
        raise PolicyUnavailable(f"the service does not answer ({error}); start one: steprag serve") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _talk(client: httpx2.Client) -> int:
    info = _said(client.get("/api/info"))
    body = {"mode": info["mode"]}
    _show(f"{info['model']} over {info['index']}; modes {', '.join(info['modes'])}; {HELP}\n")
    while True:
        _show(f"{body['mode']}> " if sys.stdin.isatty() else "")
        try:
            if not (line := sys.stdin.readline()):
                return 0
            command, _, rest = line.strip().partition(" ")
            if command == "/new":
                body.pop("conversation", None)
            elif command == "/mode":
                body["mode"] = rest.strip() or info["mode"]
            elif command:
                body["conversation"] = _answered(client, {**body, "question": line.strip()})
        except KeyboardInterrupt:
            return 0
        except ConfigError as error:
            _show(f"{error}\n")


def _answered(client: httpx2.Client, body: dict[str, str]) -> str:
    """Shows a turn while it is written; Ctrl-C stops it. Gives its conversation."""
    from apps.chat.turns.events import ENDS

    begun = _said(client.post("/api/turns", json=body))
    try:
        with client.stream("GET", f"/api/turns/{begun['turn']}/events") as reply:
            for line in reply.iter_lines():
                event = decoded(line.removeprefix("data: ")) if line.startswith("data: ") else {"type": ""}
                _show(SHOWN.get(event["type"], lambda event: "")(event))
                if event["type"] in ENDS:
                    break
    except KeyboardInterrupt:
        client.delete(f"/api/turns/{begun['turn']}")
        _show("\nstopped\n")
    return begun["conversation"]


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _said(reply: httpx2.Response) -> dict[str, Any]:
    """The JSON object of a reply. Raises ConfigError with what a refusal says."""
    try:
        told = decoded(reply.text)
        said = told["error"]["message"] if reply.is_error else ""
    except (ValueError, TypeError, LookupError):
        told, said = {}, f"{reply.url} answers {reply.status_code}, not as steprag serve does; is the address right?"
    if said:
        raise ConfigError(f"{said} (export STEPRAG_TOKEN=…)" if reply.status_code == 401 else said)
    return told
