"""Addresses of endpoints, names and sockets of this machine; whether a request comes from a page of a stranger's site.

Loopback is not enough: a page can send requests to this machine, and can make its own name point here (DNS rebinding).
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from steprag.errors import ConfigError, quoted

ANY_NAME = "*"
"""Among a service's further names: it answers to every name, as what no browser signs in to may."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(url: str) -> bool:
    """Whether a URL's host is this machine, by its name or an address. Such a host is asked without a proxy."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # such as http://[
        return False
    return is_loopback(host) or host in ("0.0.0.0", "::")


def checked_url(url: str, name: str) -> str:
    """An endpoint's URL. Raises ValueError, without the URL, for one that cannot be asked or that carries a password
    or a key: URLs are shown and kept in manifests, where keys must not stand.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
        _ = parts.port
    except ValueError:
        usable, parts = False, None
    if parts is None or not usable:
        raise ValueError(f"{name} is no URL of an endpoint; write http://HOST:PORT/… or https://…")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{name} holds a name or a password; put the key into an environment variable instead")
    if parts.query or parts.fragment:
        azure = "; Azure's address ends in /openai/v1" if "api-version=" in parts.query else ""
        raise ValueError(f"{name} contains ? or #; cut it before that, and put a key into a variable{azure}")
    return url


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is reported before anything is loaded. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it on, small replies wait 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        remedy = "; --port takes another" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}{remedy}") from None
    return listening


def url_of(listening: socket.socket) -> str:
    """The address of a listening socket as a URL; of one that listens on all addresses, as other machines reach it."""
    address, port = listening.getsockname()[:2]
    if address in ("0.0.0.0", "::"):
        address = _outward(listening.family)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _outward(family: int) -> str:
    """This machine's address in its network, or its name where it is in none. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1" if family == socket.AF_INET else "2001:db8::1", 9))
        except OSError:
            return socket.gethostname()
        return asked.getsockname()[0]


def stranger(headers: Mapping[str, str], *, loopback: bool, names: Collection[str] = ()) -> tuple[str, str] | None:
    """Code and message where a page of another site asks, None where not. Header names are lower case.

    `loopback`: the service is reached from this machine alone; else it answers to addresses too, which nobody can point
    elsewhere. `names`: further names that it answers to. A page can make any other name of its own point here.
    """
    host = headers.get("host", "")
    name = _name(host)
    known = name in LOCAL_NAMES or name in names or ANY_NAME in names
    if not known and (loopback or not _is_address(name)):
        return "wrong_host", (
            f"this service does not answer to the name {quoted(host)}; start it with --serve.hosts NAME (view: "
            "--allow_host NAME) for a proxy's or a container's name, or for all addresses of this machine with "
            "--serve.host 0.0.0.0 (view: --host 0.0.0.0) and a token of your own in STEPRAG_TOKEN"
        )
    origin = headers.get("origin")
    crosses = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
    if crosses or (origin is not None and _place(origin) != host.lower()):
        return "wrong_origin", (
            f"this service answers to its own page only, not to a page of {quoted(origin or 'another site')}; ask from "
            "a program, such as the server of a client that runs in a browser"
        )
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def own_names() -> frozenset[str]:
    """What this machine calls itself: its name, with and without the domain, and as `.local` networks have it. Slow
    where no name service answers.
    """
    names = {socket.gethostname().lower(), socket.getfqdn().lower()}
    bare = {name.partition(".")[0] for name in names if not _is_address(name)}
    return frozenset({*names, *bare, *(f"{name}.local" for name in bare)})


def _name(host: str) -> str:
    """The name in a Host header, lower case, without the port."""
    bare = host.rsplit(":", 1)[0] if not host.endswith("]") and ":" in host else host
    return bare.lower()


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as http://[
        return None
