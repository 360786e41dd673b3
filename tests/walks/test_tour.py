"""The tour as a newcomer takes it, and with the server killed at each of its steps."""

import asyncio
import re
import signal
import sys

import psutil
import pytest

from tests.servers import OMOI, omoi, postgres_of, until, up
from tests.works import boxes, git

STEPS = {
    "the project is there": r"\[3/6\]",
    "the ticket is there": r"\[4/6\]",
    "the task is given away": r"\[5/6\]",
    "the box starts": r"sandbox status: STARTING",
    "the worker has begun": r"sandbox status: RUNNING",
    "the agent has begun": r"thinking:",
    "a file was written": r"created binomial\.py",
    "a command has run": r"tool completed: C\(5,2\)",
    "the agent has ended": r"message: \[scripted model\]",
    "the work is committed": r"committed:",
}
DEMO_SECONDS = 120  # on a machine that does other things too
RESULT = "[6/6] Task completed! Result: C(50,25) = 126,410,606,437,752"


async def test_demo_shows_all_six_steps(data):
    """One command, no key, no account: it exits 0, the branch is there, and no box is left."""
    done = await omoi("demo", "--port", 0, seconds=DEMO_SECONDS, OMOI_DATA=data)
    assert done.code == 0, done.err
    for number in range(1, 6):
        assert f"[{number}/6]" in done.out
    assert RESULT in done.out
    assert not re.search(r"^\[\d/6\][^\n]*\[info", done.out + done.err, re.MULTILINE)
    branch = re.search(r"Branch created: (\S+)", done.out)[1]
    assert "n, k = 50, 25" in git(data / "repositories/demo.git", "show", f"{branch}:binomial.py")
    assert not keepers(data)


@pytest.mark.parametrize("moment", STEPS)
async def test_the_server_killed_at_any_moment(data, moment):
    """Kill -9 and start again: the tour goes on by itself and ends in the same result, once."""
    async with up(data, ORCHESTRATOR_ENABLED="true") as server:
        port = server.address.rpartition(":")[2]
        token = (await omoi("token", "create", "--name", "tour", OMOI_DATA=data)).out.split()[-1]
        repository = await made_repository(data)
        tour = await started_tour(server.address, token, repository)
        said = await said_until(tour, STEPS[moment])
        server.process.send_signal(signal.SIGKILL)
        await server.process.wait()
        await until(lambda: not postgres_of(data))
    async with up(data, PORT=port, ORCHESTRATOR_ENABLED="true") as server:
        rest, code = await asyncio.wait_for(tour.communicate(), 60), await tour.wait()
        said += rest[0].decode()
        assert code == 0, said + rest[1].decode()
        assert said.count(RESULT) == 1
        await server.sign_in()
        found = await server.ask("{ sandboxes(first: 10) { nodes { status attempt } } }")
        assert [one["status"] for one in found["data"]["sandboxes"]["nodes"]] == ["COMPLETED"]
        assert len(git(repository, "rev-list", "--all").split()) == 2
        await until(lambda: not boxes(data) and not keepers(data))


async def made_repository(data):
    """The one that a demo makes."""
    script = "import sys; from pathlib import Path; from app.cli import demo; from app.settings import Settings; "
    script += "print(demo.repository(Settings(data=Path(sys.argv[1]))))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(data), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode().strip()


async def started_tour(address, token, repository):
    return await asyncio.create_subprocess_exec(
        *(OMOI, "tour", "--url", address, "--token", token, "--repository", repository),
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def said_until(process, pattern):
    said = ""
    async with asyncio.timeout(30):
        while not re.search(pattern, said):
            line = await process.stdout.readline()
            assert line, said + (await process.stderr.read()).decode()
            said += line.decode()
    return said


def keepers(data):
    """Processes that name this data folder, but for its server's and its database's."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if f"{data}/sandboxes" in line:
            found.append(line)
    return found
