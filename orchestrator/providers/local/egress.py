"""The door of a box: what comes through is for the server, for a host on the list, or refused."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.providers.local.hosts import Endpoint, Hosts, Malformed, NotReachable, split

HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
DIAL_SECONDS = 10.0
HALF_OPEN_SECONDS = 120.0  # silence after which a connection is closed that one side has ended
LINGER_SECONDS = 2.0
CONNECTIONS = 256
CHUNK = 64 * 1024
REQUEST = re.compile(r"(?P<method>[A-Z]{1,20}) (?P<target>[!-\uffff]+) HTTP/1\.[01]")
ABSOLUTE = re.compile(r"http://(?P<authority>[^/?#]*)(?P<path>[^#]*)", re.IGNORECASE)
OF_THE_HOP = ("connection", "proxy-connection", "proxy-authorization", "keep-alive", "host")
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
NAMED = 200  # characters of a name that a log shows


class Refused(Exception):
    """The answer to a request that goes nowhere: a status and a sentence."""

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(slots=True)
class Tunnel:
    """Two connections that speak with each other."""

    inner: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    outer: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    moved: int = 0

    async def run(self) -> None:
        """Until both sides have ended; when only one has, until the other falls silent."""
        pipes = {
            asyncio.create_task(self._pipe(self.inner[0], self.outer[1])),
            asyncio.create_task(self._pipe(self.outer[0], self.inner[1])),
        }
        try:
            _, open_pipes = await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            moved = -1
            while open_pipes and moved != self.moved:
                moved = self.moved
                _, open_pipes = await asyncio.wait(open_pipes, timeout=HALF_OPEN_SECONDS)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                self.moved += len(data)
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:  # one side is gone: neither has anything left to say to it
            self.inner[1].transport.abort()
            self.outer[1].transport.abort()


@dataclass(slots=True)
class Door:
    hosts: Hosts
    server: Path  # the file that says where the server is: it may come back elsewhere
    say: Callable[[str], None]
    _opened: set[Endpoint] = field(default_factory=set)
    _visitors: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def open(self, listener: socket.socket) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._welcome, sock=listener, limit=HEAD_BYTES)
        try:
            yield
        finally:
            server.close()
            for visitor in self._visitors:
                visitor.cancel()
            await asyncio.gather(*self._visitors, return_exceptions=True)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._visitors.add(task)
        try:
            await self._serve(reader, writer)
        except Refused as refused:
            await _dismiss(refused, reader, writer)
        except OSError:  # who came has gone
            writer.transport.abort()
        except asyncio.CancelledError:  # the box ends; asyncio would print it where the worker's last words stand
            writer.transport.abort()
        finally:
            self._visitors.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visitors) > 2 * CONNECTIONS:
            raise ConnectionAbortedError
        if len(self._visitors) > CONNECTIONS:
            raise Refused("503 Service Unavailable", f"This sandbox has {CONNECTIONS} connections open already.")
        head = await _head(reader)
        line, _, fields = head.partition("\r\n")
        request = REQUEST.fullmatch(line)
        if not request:
            raise Refused("400 Bad Request", "This is no request that a proxy understands.")
        target = request["target"]
        if target.startswith("/"):
            outer = await self._dial_server()
            outer[1].write(head.encode())
        elif request["method"] == "CONNECT":
            outer = await self._dial(target, None)
            writer.write(ESTABLISHED)
        elif absolute := ABSOLUTE.fullmatch(target):
            outer = await self._dial(absolute["authority"], 80)
            outer[1].write(_rewritten(request["method"], absolute, fields))
        else:
            raise Refused("403 Forbidden", "Only http addresses and CONNECT go through here.")
        try:
            await Tunnel((reader, writer), outer).run()
        finally:
            outer[1].close()

    async def _dial_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            host, _, port = self.server.read_text().strip().rpartition(":")
            async with asyncio.timeout(DIAL_SECONDS):
                return await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            raise Refused("502 Bad Gateway", "The server is away.") from error

    async def _dial(self, authority: str, default: int | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            host, port = split(authority)
            endpoint = host, port or default or 0
            addresses = await self._addresses(endpoint)
        except (Malformed, NotReachable) as error:
            named = ascii(authority)[1:-1][:NAMED]
            self.say(f"egress refused {named}")
            raise Refused("403 Forbidden", f"{named} is not among the hosts that this sandbox may reach.") from error
        if endpoint not in self._opened:
            self._opened.add(endpoint)
            self.say(f"egress opened {_shown(endpoint)}")
        for address in addresses:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(DIAL_SECONDS):
                    return _kept_alive(await asyncio.open_connection(address, endpoint[1]))
        raise Refused("502 Bad Gateway", f"{_shown(endpoint)} does not answer.")

    async def _addresses(self, endpoint: Endpoint) -> list[str]:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return await self.hosts.addresses(*endpoint)
        except (OSError, UnicodeError) as error:
            raise Refused("502 Bad Gateway", f"{_shown(endpoint)} has no address.") from error


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            return (await reader.readuntil(b"\r\n\r\n")).decode()
    except TimeoutError as error:
        raise Refused("408 Request Timeout", f"No request came within {HEAD_SECONDS:g} seconds.") from error
    except asyncio.LimitOverrunError as error:
        raise Refused("431 Request Header Fields Too Large", "The head of the request is too long.") from error
    except (asyncio.IncompleteReadError, UnicodeDecodeError) as error:
        raise Refused("400 Bad Request", "This is no request that a proxy understands.") from error


def _rewritten(method: str, absolute: re.Match[str], fields: str) -> bytes:
    """The request as the host itself expects it; one only, because the next may be for somebody else."""
    path = absolute["path"] if absolute["path"].startswith("/") else "/" + absolute["path"]
    kept = [field for field in fields.split("\r\n") if field and field.partition(":")[0].lower() not in OF_THE_HOP]
    lines = [f"{method} {path} HTTP/1.1", f"Host: {absolute['authority']}", *kept, "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _dismiss(refused: Refused, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer, and let who came say the rest: a connection that is closed before loses the answer."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            writer.write(_answer(refused))
            writer.write_eof()
            while await reader.read(CHUNK):
                pass


def _answer(refused: Refused) -> bytes:
    body = f"{refused.sentence}\n".encode()
    head = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def _kept_alive(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A peer that vanished without a word is noticed by the system."""
    connection[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def _shown(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
