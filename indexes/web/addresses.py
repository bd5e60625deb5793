"""Which addresses the web has, and a resolver and sockets that reach no others.

A page's link, a redirect and a name server are a stranger's word. Three places look: the address as written, the
addresses that its name resolves to (they are the ones that are connected to), and each socket before it connects.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from steprag.errors import ConfigError, quoted

PORTS = {"http": 80, "https": 443}
_CLOSED_4 = tuple(map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
"""Protocol assignments (a cloud's metadata among them), 6to4 relays, and Azure's metadata."""
_UNICAST = IPv6Network("2000::/3")
_CLOSED_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
"""Within it: tunnels that carry an IPv4 address (Teredo, 6to4), documentation, protocol assignments."""
_NAT64 = IPv6Network("64:ff9b::/96")


class ForbiddenAddress(OSError):
    """Nothing may be fetched from there."""


def is_open(address: str) -> bool:
    """Whether an IP address belongs to the public internet.

    Not: private, loopback, link-local, shared (CGNAT), multicast, reserved and metadata addresses, in any IPv6 dress.
    """
    try:
        found = ip_address(address)
    except ValueError:  # also what has a zone ("fe80::1%eth0")
        return False
    return _open_4(found) if isinstance(found, IPv4Address) else _open_6(found)


def _open_4(address: IPv4Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return not any(address in network for network in _CLOSED_4)


def _open_6(address: IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return _open_4(address.ipv4_mapped)
    if address in _NAT64:
        return _open_4(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _UNICAST and not any(address in network for network in _CLOSED_6)


def places(allow: Iterable[str]) -> frozenset[tuple[str, int]]:
    """The host and port of each `host:port`. Raises ConfigError for what is none."""
    found = set()
    for place in allow:
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"web.allow: {quoted(place)} should be host:port, such as 127.0.0.1:8888")
        found.add((host.strip("[]").lower(), int(port)))
    return frozenset(found)


def checked(url: str | URL, allowed: frozenset[tuple[str, int]]) -> URL:
    """The address, if it may be asked. Raises ForbiddenAddress with the reason.

    Only http and https, ports 80 and 443, no name or password, no IP address that is not open or not written as usual
    (`2130706433`, `0x7f.1`); exact places in `allowed` may be asked whatever they are.
    """
    try:
        found = URL(url) if isinstance(url, str) else url
    except ValueError as error:
        raise ForbiddenAddress(f"no address: {str(error)[:100]}") from None
    host = found.raw_host
    if found.scheme not in PORTS or not host or found.port is None:
        raise ForbiddenAddress("only http and https addresses are fetched")
    if found.user is not None or found.password is not None:
        raise ForbiddenAddress("an address with a name or a password in it is not fetched")
    if (host.lower(), found.port) in allowed:
        return found
    if found.port not in PORTS.values():
        raise ForbiddenAddress(f"port {found.port} is not fetched from")
    if _is_number(host) and not is_open(host):
        raise ForbiddenAddress(f"{host} is no address of the public internet")
    return found


def _is_number(host: str) -> bool:
    """Whether a host is an IP address, or ends in a number, which some resolvers would take for one."""
    last = host.rstrip(".").rpartition(".")[2].lower()
    return ":" in host or last.isdigit() or last.startswith("0x")


class GuardedResolver(AbstractResolver):
    """Gives open addresses alone; what it gives is what is connected to, so a name that changes its mind gains nothing.

    Names in `allowed` may resolve to anything.
    """

    def __init__(self, inner: AbstractResolver, allowed: frozenset[tuple[str, int]]) -> None:
        self._inner, self._allowed = inner, allowed
        self._vouched: set[tuple[str, int]] = set()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The host's open addresses. Raises ForbiddenAddress where it has none."""
        found = await self._inner.resolve(host, port, family)
        if (host.lower(), port) in self._allowed:
            self._vouched |= {(each["host"], each["port"]) for each in found}
            return found
        kept = [each for each in found if is_open(each["host"])]
        if not kept:
            raise ForbiddenAddress(f"{host} has no address of the public internet")
        return kept

    def socket_for(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for one address of `getaddrinfo`, just before it connects. Raises ForbiddenAddress."""
        family, kind, protocol, _, (host, port, *_) = address
        if not (is_open(host) or (host, port) in self._vouched | self._allowed):
            raise ForbiddenAddress(f"{host} is no address of the public internet")
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Closes the resolver below."""
        await self._inner.close()
