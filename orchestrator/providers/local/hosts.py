"""Which hosts a box may reach: names compared in one spelling, and addresses that are nobody's private matter."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

HTTP_PORTS = (80, 443)
AUTHORITY = re.compile(r"(?P<host>\[[^\]@]*\]|[^:@\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
# Public by their own look, but each carries another address inside, which might not be.
CARRIERS = [ipaddress.ip_network(network) for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]

Endpoint = tuple[str, int]


class Malformed(ValueError):
    """No host has such a name."""


class NotReachable(Exception):
    """The box may not go there."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Those on the list, wherever they are; others only where they are public: listed so, or all of them."""

    listed: frozenset[Endpoint]
    listed_in_public: frozenset[Endpoint]
    open_network: bool

    @classmethod
    def of(cls, entries: Iterable[str], *, in_public: Iterable[str] = (), open_network: bool) -> "Hosts":
        """An entry `host` means its ports 80 and 443, `host:port` means this one port."""
        return cls(_endpoints(entries), _endpoints(in_public), open_network)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where to dial for this endpoint. Looked up once: a name that changes its mind gains nothing by it."""
        is_listed = (host, port) in self.listed
        if not is_listed and not self.open_network and (host, port) not in self.listed_in_public:
            raise NotReachable
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
        reachable = [address for address in addresses if is_listed or is_public(address)]
        if not reachable:
            raise NotReachable
        return reachable


def _endpoints(entries: Iterable[str]) -> frozenset[Endpoint]:
    named = [split(entry) for entry in entries]
    return frozenset((host, one) for host, port in named for one in ((port,) if port else HTTP_PORTS))


def split(authority: str) -> tuple[str, int | None]:
    """The host in the one spelling that is compared, and its port if one is named."""
    match = AUTHORITY.fullmatch(authority)
    if not match:
        raise Malformed(authority)
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise Malformed(authority)
    return _spelling(match["host"]), port


def is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        elif any(ip in network for network in CARRIERS):
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not _is_ours(ip)


def _spelling(host: str) -> str:
    try:
        if host.startswith("["):
            return str(ipaddress.IPv6Address(host[1:-1]))
        name = host.lower() if host.isascii() else host.encode("idna").decode()
    except ValueError as error:
        raise Malformed(host) from error
    name = name.removesuffix(".")
    if not NAME.fullmatch(name) or len(name) > 253:
        raise Malformed(host)
    return name


def _is_ours(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """A public address of this very machine: only our own addresses can be bound."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError:
        return False
    return True
