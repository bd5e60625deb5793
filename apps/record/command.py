"""`steprag record`: what its command line says; `apps.record.record` is imported once that is known."""

from __future__ import annotations

import argparse

from steprag.config.load import parse_arguments
from steprag.config.recipes import out_of
from steprag.errors import ConfigError
from steprag.net.hosts import checked_url


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag record", description="Keeps the calls of any agent that speaks to an OpenAI API."
    )
    parser.add_argument("--upstream", required=True, metavar="URL",
                        help="the API that answers, as https://api.openai.com/v1; it gets the agent's key")  # fmt: skip
    parser.add_argument(
        "--out", metavar="RUN", help="run folder: calls.jsonl; an existing one is continued [runs/record-calls]"
    )
    parser.add_argument("--port", type=int, default=8400, help="of this machine; 0 takes a free one [8400]")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for a call, its last byte included [600]")
    given = parse_arguments(parser, argv)
    if not 0 <= given.port <= 65535 or not 0 < given.seconds <= 86400:
        raise ConfigError("--port takes 0 to 65535, --seconds a number above 0, up to 86400")
    try:
        upstream = checked_url(given.upstream, "--upstream").rstrip("/")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    from apps.record.record import serve_record  # a web server, which no help needs
    from steprag.web.listening import until_stopped

    return until_stopped(serve_record(upstream, out_of(given, "record", "calls"), given.port, given.seconds))
