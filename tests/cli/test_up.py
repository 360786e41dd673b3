"""`omoi up` as operators start it: what it says, what it keeps, and each way in which it cannot start."""

import os
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import refused
from tests.servers import omoi, postgres_of, until, up


async def test_first_start(served):
    """A newcomer gets an address, a link that makes them admin, and the way to the API's own page."""
    assert re.fullmatch(r"OmoiOS is up at http://127\.0\.0\.1:\d+", served.said[0])
    assert f"GraphiQL: {served.address}/graphiql" in served.said
    await served.sign_in()
    answer = await served.ask("{ viewer { kind user { email admin } } }")
    assert answer["data"]["viewer"] == {"kind": "USER", "user": {"email": "admin@localhost", "admin": True}}
    assert (await served.http.get(served.link)).status_code == 403
    assert (await served.http.get("/")).headers["location"] == "/graphiql"


async def test_second_start_keeps_everything(old_data):
    """What was made is there after a restart, under the same account and the same session."""
    async with up(old_data) as first:
        await first.sign_in()
        await first.ask('mutation { createProject(input: {name: "Apollo"}) { project { id } } }')
    async with up(old_data) as second:
        second.resume(first.session)
        answer = await second.ask("{ projects { nodes { name } } viewer { user { email } } }")
        assert answer["data"]["projects"]["nodes"] == [{"name": "Apollo"}]
        assert answer["data"]["viewer"]["user"]["email"] == "admin@localhost"
        assert (await second.http.get(second.link)).status_code == 303


async def test_ipv6_address_can_be_opened(old_data):
    """The address that is printed is one that a browser understands."""
    async with up(old_data, HOST="::1") as server:
        assert server.address.startswith("http://[::1]:")
        await server.sign_in()
        assert (await server.ask("{ viewer { kind } }"))["data"]["viewer"]["kind"] == "USER"


async def test_public_address_is_the_one_that_is_told(old_data):
    """Behind a proxy the link leads to the proxy, and cookies are for TLS alone."""
    async with httpx.AsyncClient() as http:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = {"PORT": port, "OMOI_PUBLIC_URL": "https://omoi.example.com/", "OMOI_PRODUCTION": "true"}
        async with up(old_data, **given) as server:
            assert server.link.startswith("https://omoi.example.com/sign-in?token=")
            assert not any("GraphiQL" in line for line in server.said)
            entered = await http.get(server.link.replace("https://omoi.example.com", f"http://127.0.0.1:{port}"))
            assert "; Secure" in entered.headers["set-cookie"]


async def test_port_that_is_taken(data):
    """Who listens already is not pushed aside."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(await omoi("up", "--port", port, OMOI_DATA=data), 2)
    assert f"127.0.0.1:{port} already" in message
    assert "--port" in message
    assert not data.exists()


async def test_address_that_is_not_ours(data):
    """An address of another machine is refused with the settings to check."""
    message = refused(await omoi("up", OMOI_DATA=data, HOST="192.0.2.1", PORT=0), 2)
    assert "192.0.2.1" in message
    assert "HOST" in message


async def test_port_that_is_not_allowed(data):
    """A port for which this user lacks the right is refused with the way out."""
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if first == 0:
        pytest.skip("every port is allowed here")
    command = ["setpriv", "--bounding-set", "-net_bind_service", "--inh-caps", "-net_bind_service"]
    done = await omoi("up", "--port", first - 1, OMOI_DATA=data, through=command)
    assert "not allowed for this user" in refused(done, 2)


async def test_folder_that_cannot_be_used(data):
    """Where no folder can be made, the sentence names it and the setting."""
    data.write_text("a file")
    for folder in (data, "/proc/omoi"):
        message = refused(await omoi("up", OMOI_DATA=folder, PORT=0), 2)
        assert str(folder) in message
        assert "OMOI_DATA" in message


async def test_folder_that_is_in_use(served):
    """A second server on the same folder is told who has it; the first one does not notice."""
    message = refused(await omoi("up", OMOI_DATA=served.data, PORT=0), 2)
    assert f"process {served.process.pid} (omoi up on {served.address})" in message
    assert (await served.http.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"DATABASE_URL": "postgresql://ada:canary@127.0.0.1:1/db"}, "db on 127.0.0.1:1 cannot be reached"),
        ({"REDIS_URL": "http://:canary@host"}, "REDIS_URL is no address"),
        ({"OMOI_DOCUMENTS": "/nowhere/canary.json"}, "/nowhere/canary.json"),
    ],
)
async def test_settings_that_cannot_work(old_data, environment, why):
    """What was set wrongly is said before anything is served; no password is."""
    message = refused(await omoi("up", OMOI_DATA=old_data, PORT=0, **environment), 2)
    assert why in message
    assert "OMOI_DOCUMENTS" in environment or "canary" not in message
    assert not postgres_of(old_data)


async def test_start_after_a_kill(old_data):
    """After SIGKILL nothing of the server is left, and the next one finds everything."""
    async with up(old_data) as first:
        await first.sign_in()
        os.kill(first.process.pid, signal.SIGKILL)
        await first.ended()
        await until(lambda: not postgres_of(old_data))
    async with up(old_data) as second:
        second.resume(first.session)
        assert (await second.ask("{ viewer { kind } }"))["data"]["viewer"]["kind"] == "USER"
