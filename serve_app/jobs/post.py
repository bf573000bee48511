"""Sends one request to a client's server, after checking its address.

A host name can resolve to any address, and differently each time. So it is resolved once, every address is checked, and
the connection uses the first that accepts one. Redirects are not followed, and little of the answer is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Mapping, Sequence
from functools import cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

_MOST_HEAD: Final = 16 * 1024
"""Bytes of an answer that are read."""

_TRY_S: Final = 2.0
"""How long an address has to take a connection before the next one is tried."""

_STATUS: Final = re.compile(rb"[1-5][0-9]{2}")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(map(IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "fec0::/10")))
"""Beside those that Python knows: stand for IPv4 addresses, or for hosts of a site, as its own network has it."""

Network = IPv4Network | IPv6Network


class AddressRefused(OSError):
    """The host has a forbidden address."""


def is_public(address: IPv4Address | IPv6Address, others: Sequence[Network] = ()) -> bool:
    """Whether an address is public, or of an additionally allowed network.

    Args:
        address: An IPv6 address that embeds an IPv4 one counts as that.
        others: Allowed networks.
    """
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner, others)
    if any(address in network for network in others if network.version == address.version):
        return True
    if isinstance(address, IPv6Address) and any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast


@cache
def _tls() -> ssl.SSLContext:
    """Cached: reading the system's authorities takes tens of milliseconds."""
    return ssl.create_default_context()


async def _connect(
    addresses: Sequence[str], port: int, secure_host: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts, with TLS if a name for it is given. Raises `OSError`."""
    connect = partial(
        asyncio.open_connection,
        port=port,
        ssl=None if secure_host is None else _tls(),
        server_hostname=secure_host,
        limit=_MOST_HEAD,
    )
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_TRY_S):
                return await connect(address)
    return await connect(addresses[-1])


async def post(url: str, headers: Mapping[str, str], body: bytes, networks: Sequence[Network] = ()) -> int:
    """POST a body; returns the status. The caller bounds the time; cancelling closes the connection.

    Args:
        url: ``http`` or ``https``, checked by the caller.
        networks: Allowed networks that are not public.

    Raises:
        AddressRefused: The host has a forbidden address.
        OSError: The host is unreachable, or no HTTP server.
        ValueError: The URL is malformed, or its host is no possible DNS name.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # SOCK_STREAM
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not is_public(ip_address(address.partition("%")[0]), networks):
            raise AddressRefused(f"{host} leads to an address that is not public")
    reader, writer = await _connect(addresses, port, host if secure else None)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = parts.netloc.rpartition("@")[2]
        fields = {"host": named, **headers, "content-length": str(len(body)), "connection": "close"}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise OSError("a header holds a line break")
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        try:
            line = (await reader.readuntil(b"\r\n")).split()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise OSError("the answer is not HTTP") from None
        if len(line) < 2 or not line[0].startswith(b"HTTP/1.") or not _STATUS.fullmatch(line[1]):
            raise OSError("the answer is not HTTP")
        return int(line[1])
    finally:
        writer.close()
