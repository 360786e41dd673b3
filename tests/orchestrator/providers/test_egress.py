"""The door of a box lets requests through to the server and to the hosts on the list, and refuses the rest."""

import asyncio
import contextlib
import socket

import pytest

from orchestrator.providers.local import egress
from orchestrator.providers.local.egress import Door
from orchestrator.providers.local.hosts import Hosts
from tests.servers import until


class Echo:
    """A host that keeps what it was sent, and answers each connection with its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[bytes] = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error):
        self.server.close()

    async def _answer(self, reader, writer):
        self.heard.append(await reader.read(65536))
        body = self.name.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


class Box:
    """What stands on the inner side of a door."""

    def __init__(self, port: int, said: list[str], server) -> None:
        self.port = port
        self.said = said
        self.server = server

    async def ask(self, words: str | bytes) -> str:
        """Everything that comes back until the other side has ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(words.encode() if isinstance(words, str) else words)
        writer.write_eof()
        try:
            async with asyncio.timeout(20):
                return (await reader.read()).decode()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def door(folder, *entries: str, open_network: bool = False):
    said: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    opened = Door(Hosts.of(entries, open_network=open_network), folder / "server", said.append)
    async with opened.open(listener):
        yield Box(listener.getsockname()[1], said, folder / "server")


async def test_origin_form_goes_to_the_server(tmp_path):
    """A request that names only a path is for the server, as it stands."""
    async with Echo("server") as server, door(tmp_path) as box:
        box.server.write_text(f"127.0.0.1:{server.port}")
        request = "POST /graphql HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Length: 2\r\n\r\n{}"
        assert "server" in await box.ask(request)
        assert server.heard == [request.encode()]


async def test_the_server_is_followed(tmp_path):
    """Where the server is is read for each connection: away it is a 502 at once, and it may come back elsewhere."""
    async with door(tmp_path) as box:
        assert "502 " in await box.ask("GET / HTTP/1.1\r\n\r\n")
        for name in ("first", "second"):
            async with Echo(name) as server:
                box.server.write_text(f"127.0.0.1:{server.port}")
                assert name in await box.ask("GET / HTTP/1.1\r\n\r\n")
        assert "502 " in await box.ask("GET / HTTP/1.1\r\n\r\n")


async def test_a_listed_host_by_its_address(tmp_path):
    """A request to a listed host arrives as that host expects it, for this host and once."""
    async with Echo("listed") as host, door(tmp_path, f"127.0.0.1:{host.port}") as box:
        there = f"127.0.0.1:{host.port}"
        fields = "Host: other.example\r\nProxy-Connection: keep-alive\r\nX-A: 1\r\n"
        assert "listed" in await box.ask(f"GET http://{there}/a?b=c HTTP/1.1\r\n{fields}\r\n")
        assert host.heard == [f"GET /a?b=c HTTP/1.1\r\nHost: {there}\r\nX-A: 1\r\nConnection: close\r\n\r\n".encode()]
        assert box.said == [f"egress opened {there}"]


async def test_a_tunnel_to_a_listed_host(tmp_path):
    """CONNECT to a listed host is a tunnel for whatever follows; its first use is told once."""
    async with Echo("listed") as host, door(tmp_path, f"LOCALHOST:{host.port}") as box:
        for name in ("localhost", "LocalHost."):
            answer = await box.ask(f"CONNECT {name}:{host.port} HTTP/1.1\r\n\r\nhello")
            assert answer.startswith("HTTP/1.1 200 ")
            assert answer.endswith("listed")
        assert host.heard == [b"hello", b"hello"]
        assert box.said == [f"egress opened localhost:{host.port}"]


@pytest.mark.parametrize("open_network", [False, True])
@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"),
        *("localhost.localdomain", "listed.example@127.0.0.1", "127.0.0.1\x01", "localhost%00", "[::ffff:7f00:1]"),
    ],
)
async def test_this_machine_is_refused(tmp_path, host, open_network):
    """The machine itself is refused by each of its names, also where the network is open, and the refusal is told."""
    async with Echo("secret") as secret, door(tmp_path, "listed.example", open_network=open_network) as box:
        for head in (f"CONNECT {host}:{secret.port}", f"GET http://{host}:{secret.port}/"):
            answer = await box.ask(f"{head} HTTP/1.1\r\n\r\n")
            assert answer.split()[1] in ("400", "403", "502")
        assert secret.heard == []


@pytest.mark.parametrize("target", ["evil.example:443", "listed.example:444", "listed.example", "a.listed.example:443"])
async def test_what_is_not_listed_is_refused(tmp_path, target):
    """A name, or a port of a listed name, that is not on the list is a 403 with a sentence, and a line in the log."""
    async with door(tmp_path, "listed.example") as box:
        answer = await box.ask(f"CONNECT {target} HTTP/1.1\r\n\r\n")
        assert answer.startswith("HTTP/1.1 403 ")
        assert answer.endswith(f"{target} is not among the hosts that this sandbox may reach.\n")
        assert box.said == [f"egress refused {target}"]


@pytest.mark.parametrize(
    "words",
    [
        *(
            "GET ftp://listed.example/ HTTP/1.1\r\n\r\n",
            "GET HTTP/1.1\r\n\r\n",
            "nonsense\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\n\r\n",
        ),
        *(b"\xff\xfe\r\n\r\n", "GET / HTTP/2\r\n\r\n", "GET /", "", b"\x16\x03\x01\x02\x00\r\n\r\n"),
    ],
)
async def test_what_is_no_request_is_refused(tmp_path, words):
    """What a proxy cannot understand goes nowhere."""
    async with Echo("server") as server, door(tmp_path, "listed.example") as box:
        box.server.write_text(f"127.0.0.1:{server.port}")
        assert (await box.ask(words)).split()[1] in ("400", "403")
        assert server.heard == []


async def test_a_refusal_is_heard_to_the_end(tmp_path):
    """Who is refused in the middle of a long request still gets the answer."""
    async with door(tmp_path) as box:
        head = b"POST http://evil.example/ HTTP/1.1\r\n\r\n"
        assert "403 " in await box.ask(head + bytes(8_000_000))


async def test_a_line_of_the_log_stays_one_line(tmp_path):
    """A name cannot write lines of its own into the log."""
    async with door(tmp_path) as box:
        await box.ask("CONNECT evil.example\u2028omoi:egress HTTP/1.1\r\n\r\n")
        await box.ask("CONNECT evil.example\x0bopened:443 HTTP/1.1\r\n\r\n")
        assert [line.isascii() and line.isprintable() for line in box.said] == [True]


async def test_slow_and_long_heads_end(tmp_path, monkeypatch):
    """Who sends no head, or one without end, is sent away."""
    monkeypatch.setattr(egress, "HEAD_SECONDS", 0.05)
    async with door(tmp_path) as box:
        reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
        writer.write(b"GET / HT")
        assert b"408 " in await reader.readline()
        writer.close()
    monkeypatch.undo()
    async with door(tmp_path) as box:
        assert "431 " in await box.ask(b"GET /" + b"a" * 200_000)


async def test_too_many_connections(tmp_path, monkeypatch):
    """One connection more than there may be is refused; when others end there is room again."""
    monkeypatch.setattr(egress, "CONNECTIONS", 2)
    async with door(tmp_path) as box:
        held = [await asyncio.open_connection("127.0.0.1", box.port) for _ in range(2)]
        assert "503 " in await box.ask("GET / HTTP/1.1\r\n\r\n")
        for _, writer in held:
            writer.close()

        async def has_room():
            return "502 " in await box.ask("GET / HTTP/1.1\r\n\r\n")

        await until(has_room)


async def test_a_half_open_connection_ends(tmp_path, monkeypatch):
    """When one side has ended and the other has nothing more to say, the connection ends."""
    monkeypatch.setattr(egress, "HALF_OPEN_SECONDS", 0.05)
    silent, over, closed = asyncio.Event(), asyncio.Event(), []

    async def say_nothing(reader, writer):
        await reader.read()
        silent.set()
        await over.wait()
        writer.close()
        closed.append(True)

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with door(tmp_path) as box:
        box.server.write_text(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await box.ask("GET / HTTP/1.1\r\n\r\n") == ""
        assert silent.is_set()
    over.set()
    server.close()
    await until(lambda: closed)


async def test_much_passes_whole(tmp_path):
    """A large answer and a large request pass byte for byte."""
    large = bytes(range(256)) * 40_000

    async def send_back(reader, writer):
        writer.write(await reader.read())
        writer.close()

    server = await asyncio.start_server(send_back, "127.0.0.1", 0)
    async with door(tmp_path) as box:
        box.server.write_text(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
        head = b"PUT / HTTP/1.1\r\n\r\n"
        writer.write(head + large)
        writer.write_eof()
        assert await reader.read() == head + large
        writer.close()
    server.close()
