"""An agent that tries to leave its box: each command below is run by the agent itself, through its own shell."""

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.databases import cloned
from tests.servers import until
from tests.traces import processes
from tests.works import working

DIRECT, PROXIED = "curl -sS -m 5 --noproxy '*'", "curl -sS -m 5 --noproxy ''"
ANSWER = "from the host"


@dataclass
class Host:
    """Something that listens on this machine's loopback, and counts who comes."""

    port: int = 0
    visits: int = 0

    async def answer(self, reader, writer):
        self.visits += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
        writer.write(f"{head}{ANSWER}".encode())
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def listening():
    host = Host()
    server = await asyncio.start_server(host.answer, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


@pytest.fixture(scope="module")
async def registry():
    """A host that the operator's setting lists."""
    async with listening() as host:
        yield host


@pytest.fixture(scope="module")
async def works(postgres, registry):
    async with cloned(postgres) as url, working(url, registries=(f"localhost:{registry.port}",)) as running:
        yield running


@pytest.fixture
async def secret_service():
    """A host that is nobody's business."""
    async with listening() as host:
        yield host


async def tried(works, *commands, egress="REGISTRIES"):
    """What an agent hears that runs these, in a project with this egress."""
    project = await works.project(settings={"egress": egress})
    task = await works.done(project, "[[obedient]] Try", description=fenced(*commands))
    assert task["status"] == "COMPLETED", task["failure"]
    outputs = await works.outputs(task)
    assert len(outputs) == len(commands)
    return outputs


def fenced(*commands):
    return "\n".join(["```", *commands, "```"])


def looking(path):
    """A command that says whether there is such a file."""
    return f"test -e {path} && echo there || echo away"


def connecting(kind, address):
    """A command that says why it could not connect, or that it could."""
    program = f"import os, socket; print(os.strerror(socket.socket(socket.AF_{kind}).connect_ex({address!r})))"
    return f'python3 -c "{program}"'


async def test_loopback_of_the_host(works, secret_service):
    """No port of the host's loopback: not directly, not past the proxy's list, not by another spelling."""
    port = secret_service.port
    names = [
        f"localhost:{port}",
        f"127.0.0.1:{port}",
        f"127.1:{port}",
        f"2130706433:{port}",
        f"[::ffff:127.0.0.1]:{port}",
    ]
    direct, *proxied = await tried(
        works,
        connecting("INET", ("127.0.0.1", port)),
        *(f"{PROXIED} http://{name}/" for name in names),
        *(f"{PROXIED} -p http://{name}/" for name in names),
    )
    assert direct.strip() == "Connection refused"
    assert all("403" in said or "not among the hosts" in said for said in proxied), proxied
    assert secret_service.visits == 0


async def test_the_database_of_the_host(works):
    """The embedded Postgres has no socket that could be seen from a box."""
    query = make_url(works.world.database_url).query
    path = f"{query['host']}/.s.PGSQL.{query['port']}"
    assert Path(path).is_socket()
    connected, listed = await tried(works, connecting("UNIX", path), looking(query["host"]))
    assert (connected.strip(), listed.strip()) == ("No such file or directory", "away")


async def test_files_of_the_host(works):
    """Neither the data folder with its root key, nor the home folder of whoever runs the server, nor /tmp."""
    data = works.folder / "data"
    assert (data / "root.key").exists()
    with contextlib.ExitStack() as stack:
        marks = [stack.enter_context(tempfile.NamedTemporaryFile(dir=one)).name for one in (Path.home(), "/tmp", data)]
        places = [*marks, str(data / "root.key"), str(data / "sandboxes"), "/var/run/docker.sock"]
        said = await tried(works, *map(looking, places), looking("/usr/bin/env"))
    assert [one.strip() for one in said] == ["away"] * len(places) + ["there"]


async def test_another_box(works):
    """Its processes, its files and its door are elsewhere, though its agent works at the same time."""
    project = await works.project()
    mark = "marked-by-the-other"
    lingers = f"echo {mark} > ~/{mark}; echo {mark} > /tmp/{mark}; python3 -c 'import time; time.sleep(60)' {mark}"
    other = await works.task(project, "[[obedient]] Stay", description=fenced("echo begun", lingers))
    sandbox = (await works.reaches(other, "RUNNING"))["sandboxes"]["nodes"][0]
    home = works.folder / "data/sandboxes" / sandbox["name"] / "home"
    await until(lambda: (home / mark).exists() and processes(mark))
    seen, found, own = await tried(
        works,
        "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c ^marked-by",
        f"find / -name '{mark[:-1]}?' -not -path '/proc/*' 2>/dev/null | wc -l",
        looking(str(home)),
    )
    assert (seen.split()[-1], found.strip(), own.strip()) == ("0", "0", "away")
    await works.account.do("cancelTask", "task { status }", taskId=other)


@pytest.mark.parametrize(("egress", "listed"), [("OFFLINE", False), ("REGISTRIES", True), ("OPEN", True)])
async def test_egress(works, registry, secret_service, egress, listed):
    """The operator's registries unless it is offline; what is private is refused in an open network too."""
    before = registry.visits
    private = [f"127.0.0.1:{secret_service.port}", "10.0.0.1", "192.168.0.1", "169.254.169.254", "[::1]:80"]
    unlisted = [] if egress == "OPEN" else ["example.com", "example.com:443"]
    asked, *refused = await tried(
        works,
        f"{PROXIED} http://localhost:{registry.port}/",
        *(f"{PROXIED} http://{host}/" for host in private + unlisted),
        *(f"{PROXIED} https://{host}/" for host in private + unlisted),
        egress=egress,
    )
    assert (asked == ANSWER) is listed
    assert registry.visits - before == listed
    assert [said for said in refused if "403" not in said and "not among the hosts" not in said] == []
    assert secret_service.visits == 0


@pytest.mark.parametrize("egress", ["OFFLINE", "OPEN"])
async def test_past_the_door(works, egress):
    """Without the proxy there is no network at all, and nobody answers questions about names."""
    hosts = ["192.0.2.1", "example.com", "169.254.169.254"]
    said = await tried(works, *(f"{DIRECT} http://{host}/" for host in hosts), egress=egress)
    assert [one for one in said if "Couldn't connect" not in one and "Could not resolve" not in one] == []
