"""A sandbox of this machine goes on without its server, and never without its keeper."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.providers import MachineState, ProviderError, Tier
from orchestrator.providers.local import box, keeper, limits, processes, removal, starting
from orchestrator.providers.local import folder as folders
from orchestrator.providers.local.folder import Folder
from orchestrator.providers.local.provider import LocalProvider
from tests.orchestrator.providers.boxes import (
    LEAVES_CHILDREN,
    ended,
    order,
    outcome,
    running,
    running_with,
    says,
    unmistakable_seconds,
)
from tests.orchestrator.providers.test_egress import Echo
from tests.servers import until

ASKS = """
    import socket, time
    for number in range(100_000):
        time.sleep(0.02)
        with socket.create_connection(("127.0.0.1", int("{port}"))) as door:
            door.sendall(b"GET /graphql HTTP/1.1\\r\\n\\r\\n")
            if said := door.recv(4096).splitlines():
                print(said[-1].decode(), flush=True)
"""
SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from orchestrator.providers import Tier
from orchestrator.providers.local.provider import LocalProvider
from tests.orchestrator.providers.boxes import order, says
async def main():
    provider = LocalProvider(Path(sys.argv[1]), deployment="test", machines=4, tier=Tier(sys.argv[2]))
    await provider.start("http://127.0.0.1:9")
    await provider.create(order(name="survivor", env={"TASK_ID": "1"}))
    await says(provider, "survivor", "up")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture(params=[Tier.NAMESPACES, Tier.PROCESS])
def provider(request, boxes, processes):
    return boxes if request.param is Tier.NAMESPACES else processes


def folder_of(provider, name) -> Folder:
    return Folder(provider._root / name)


def keeper_of(provider, name) -> int:
    return folders.read(folder_of(provider, name).state)["keeper"][0]


@pytest.mark.parametrize("tier", [Tier.NAMESPACES, Tier.PROCESS])
async def test_a_killed_server_is_not_missed(tmp_path, tier):
    """A sandbox runs on when its server is killed; the next one adopts it, reads its log and deletes it."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, tmp_path, tier.value], cwd=Path.cwd(), start_new_session=True
    )
    assert await asyncio.to_thread(server.wait) == -signal.SIGKILL
    provider = LocalProvider(tmp_path, deployment="test", machines=4, tier=tier)
    await provider.start("http://127.0.0.1:9")
    [machine] = await provider.list()
    assert (machine.name, machine.state) == ("survivor", MachineState.RUNNING)
    assert await provider.create(order(name="survivor", env={"TASK_ID": "1"})) == machine
    assert await provider.log("survivor", 10) == "up"
    keeper = processes.identify(keeper_of(provider, "survivor"))
    await provider.delete("survivor")
    assert not processes.is_alive(keeper)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server"]


async def test_a_killed_keeper_takes_its_box_along(boxes):
    """When the keeper of a box is killed nothing in the box goes on, and the machine has ended."""
    seconds = unmistakable_seconds()
    ordered = order(LEAVES_CHILDREN.format(seconds=seconds))
    async with running(boxes, ordered):
        await says(boxes, ordered.name, "up")
        os.kill(keeper_of(boxes, ordered.name), signal.SIGKILL)
        machine = await ended(boxes, ordered.name)
        assert (machine.exit_code, machine.detail) == (None, "Its keeper was killed.")
        await until(lambda: not running_with(seconds))


async def test_a_killed_keeper_leaves_nothing_that_deleting_misses(provider):
    """In each tier deleting ends what a killed keeper left, and removes its control groups."""
    seconds = unmistakable_seconds()
    ordered = order(LEAVES_CHILDREN.format(seconds=seconds))
    await provider.create(ordered)
    await says(provider, ordered.name, "up")
    groups = folders.read(folder_of(provider, ordered.name).state)["groups"]
    os.kill(keeper_of(provider, ordered.name), signal.SIGKILL)
    await provider.delete(ordered.name)
    assert (running_with(seconds), [path for path in groups if Path(path).exists()]) == ([], [])
    assert await provider.get(ordered.name) is None


async def test_a_keeper_that_hangs_is_ended(provider, monkeypatch):
    """One that was stopped hears no wish to end: it goes all the same, with its box."""
    monkeypatch.setattr(removal, "STOP_SECONDS", 0.1)
    seconds = unmistakable_seconds()
    ordered = order(LEAVES_CHILDREN.format(seconds=seconds))
    await provider.create(ordered)
    await says(provider, ordered.name, "up")
    os.kill(keeper_of(provider, ordered.name), signal.SIGSTOP)
    await provider.delete(ordered.name)
    assert (running_with(seconds), await provider.get(ordered.name)) == ([], None)


async def test_a_worker_without_its_keeper_ends(processes):
    """Without a box the worker too ends with its keeper."""
    ordered = order()
    async with running(processes, ordered):
        await says(processes, ordered.name, "up")
        worker = folders.read(folder_of(processes, ordered.name).state)["box"]
        os.kill(keeper_of(processes, ordered.name), signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{worker[0]}/stat").exists())


@pytest.mark.parametrize("shift", [0, 1])
async def test_a_number_used_again_is_spared(boxes, shift):
    """Who has the number of a keeper that is gone is not taken for it."""
    ordered = order("pass")
    await boxes.create(ordered)
    await ended(boxes, ordered.name)
    folder = folder_of(boxes, ordered.name)
    await until(lambda: not folders.is_locked(folder.lock))
    bystander = subprocess.Popen(["sleep", "100"])
    pid, start = processes.identify(bystander.pid)
    changed = {"keeper": [pid, start + shift]} | ({"box": [pid, start + 1]} if shift else {})
    folders.write(folder.state, folders.read(folder.state) | changed)
    await boxes.delete(ordered.name)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


async def test_the_server_comes_back_elsewhere(boxes):
    """A worker hears at once that the server is away, and finds it again at its new address."""
    ordered = order(ASKS.format(port=8000))
    async with running(boxes, ordered):
        await says(boxes, ordered.name, "The server is away.")
        async with Echo("it is back") as server:
            await boxes.start(f"http://127.0.0.1:{server.port}")
            await says(boxes, ordered.name, "it is back")


async def test_the_door_of_a_plain_process(processes):
    """Without a box the door has a port of its own, and the worker's environment names that one."""
    program = ASKS.format(port='" + __import__("os").environ["CALLBACK_URL"].rsplit(":")[-1].partition("/")[0] + "')
    ordered = order(program, env={"CALLBACK_URL": processes.capabilities().callback_url + "/x"})
    async with running(processes, ordered):
        await says(processes, ordered.name, "The server is away.")


async def test_the_listed_host_and_no_other(boxes):
    """From inside a box a listed host answers, and another is refused with a line in the log."""
    program = """
        import urllib.request, urllib.error
        for port in ({listed}, {other}):
            try:
                print(urllib.request.urlopen(urllib.request.Request("http://localhost.:%d/" % port)).read().decode())
            except urllib.error.HTTPError as error:
                print(error.code)
    """
    async with Echo("listed") as listed, Echo("other") as other:
        ordered = order(program.format(listed=listed.port, other=other.port), reachable=[f"localhost:{listed.port}"])
        lines = (await outcome(boxes, ordered)).lines
    assert sorted(lines) == sorted(
        [
            f"omoi: egress opened localhost:{listed.port}",
            "listed",
            f"omoi: egress refused localhost.:{other.port}",
            "403",
        ]
    )


async def test_a_failed_start_says_why(boxes, monkeypatch):
    """What keeps a box from starting is in the error, in the words of who knew it, and nothing stays behind."""
    way = boxes._way
    monkeypatch.setattr(boxes, "_way", type(way)(way.tier, "/nowhere/python", way.program, way.visible, way.limits))
    ordered = order()
    with pytest.raises(ProviderError, match=r"bwrap: execvp /nowhere/python: No such file or directory"):
        await boxes.create(ordered)
    assert await boxes.get(ordered.name) is None


async def test_a_machine_without_namespaces(tmp_path, monkeypatch):
    """Where no box starts the tier is that of processes, and the note tells the reason."""
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(box, "programs", lambda: [str(refusing)])
    provider = LocalProvider(tmp_path / "sandboxes", deployment="test", machines=1)
    await provider.start("http://127.0.0.1:9")
    assert provider.capabilities().tier is Tier.PROCESS
    assert "setting up uid map: Permission denied" in provider.capabilities().note
    with pytest.raises(ProviderError, match="uid map"):
        await LocalProvider(tmp_path / "x", deployment="test", machines=1, tier=Tier.NAMESPACES).start("127.0.0.1:9")


async def test_what_was_begun_is_finished(boxes):
    """A sandbox that was prepared but never started is started by the same order; a removal is completed."""
    ordered = order()
    folder = folder_of(boxes, ordered.name)
    folder.path.mkdir()
    folders.write(folder.order, {"labels": dict(ordered.labels)})
    for left in (f"{removal.GONE}x-1", f"{removal.NEW}x", f"{removal.TRIAL}x"):
        (boxes._root / left / "home").mkdir(parents=True)
    assert (await boxes.get(ordered.name)).state is MachineState.STARTING
    async with running(boxes, ordered) as machine:
        assert machine.state is MachineState.RUNNING
    await boxes.start("http://127.0.0.1:9")
    assert not list(boxes._root.glob(".*"))


@pytest.mark.parametrize("left", [f"{removal.GONE}x-1-2", f"{removal.NEW}x-1", f"{removal.TRIAL}x"])
async def test_what_others_are_at_is_theirs(boxes, left):
    """A server that starts beside another one touches nothing that the other makes or removes in this moment."""
    path = boxes._root / left
    (path / "home").mkdir(parents=True)
    async with removal.alone(boxes._root, left if left.startswith(removal.TRIAL) else "x-1"):
        await removal.sweep(boxes._root)
        assert (path / "home").exists()
    await removal.sweep(boxes._root)
    assert not path.exists()


async def test_a_trial_is_somebodys(tmp_path, monkeypatch):
    """A server that starts while another one tries the machine does not take its trial away."""
    swept = []
    start = starting.start

    async def started(folder, *given):
        await start(folder, *given)
        await removal.sweep(tmp_path)
        swept.append(folder.path.is_dir())

    monkeypatch.setattr(starting, "start", started)
    await LocalProvider(tmp_path, deployment="test", machines=1).start("http://127.0.0.1:9")
    assert swept == [True]


async def test_servers_that_start_at_once(tmp_path, monkeypatch):
    """One at a time writes down where it is, and then the next one."""
    hold, waits = folders.hold, asyncio.Event()
    monkeypatch.setattr(folders, "hold", lambda path, stack: hold(path, stack) or waits.set())
    provider = LocalProvider(tmp_path, deployment="test", machines=1)
    async with removal.alone(tmp_path, "server"):
        starting = asyncio.create_task(provider.start("http://127.0.0.1:9"))
        await until(waits.is_set)
        assert not (tmp_path / "server").exists()
    await starting
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("server", "127.0.0.1:9")]


def test_what_was_written_outlives_a_power_cut(tmp_path, monkeypatch):
    """The content is on the disk before it has its name, and the name before anybody is told."""
    synced = []
    sync = os.fsync

    def noted(descriptor):
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), (tmp_path / "state.json").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    folders.write(tmp_path / "state.json", {"box": 1})
    [(content, named_before), (folder, named_then)] = synced
    assert (content.parent, named_before) == (tmp_path, False)
    assert (folder, named_then) == (tmp_path, True)


@pytest.mark.parametrize("left", ["", '{"keeper": [', "\0\0\0", "null"])
async def test_half_a_state_is_an_end(boxes, left):
    """What a power cut left of a sandbox that ran is no start that goes on for ever, and is removed like any other."""
    ordered = order()
    async with running(boxes, ordered):
        folder = folder_of(boxes, ordered.name)
        os.kill(keeper_of(boxes, ordered.name), signal.SIGKILL)
        await ended(boxes, ordered.name)
        limits.remove(map(Path, folders.read(folder.state)["groups"]))  # as the end of the power would
        folder.state.write_text(left)
        machine = await boxes.get(ordered.name)
        assert (machine.state, machine.detail) == (MachineState.ENDED, "What its keeper wrote down is lost.")
    assert not folder.path.exists()


async def test_half_an_order_is_nobodys(boxes):
    """A sandbox that cannot say any more whose it is goes with the next start of a server."""
    ordered = order()
    async with running(boxes, ordered):
        folder = folder_of(boxes, ordered.name)
        folder.order.write_text('{"labels": {"deploy')
        assert await boxes.get(ordered.name) is None
        await removal.sweep(boxes._root)
        assert not folder.path.exists()


async def test_a_log_that_cannot_be_read_is_said(boxes):
    """What the system refuses is an error of the provider that names this sandbox's trouble, and no other's."""
    ordered = order("pass")
    async with running(boxes, ordered):
        await ended(boxes, ordered.name)
        folder = folder_of(boxes, ordered.name)
        folder.log.unlink(missing_ok=True)
        folder.log.mkdir()
        with pytest.raises(ProviderError, match="Is a directory"):
            await boxes.log(ordered.name, 10)


async def test_files_that_resist_are_removed(boxes):
    """Folders that are closed, or deeper than a program can call itself, go with the sandbox."""
    program = """
        import os
        os.makedirs("closed/full")
        os.chmod("closed", 0)
        for _ in range(1500):
            os.mkdir("deep")
            os.chdir("deep")
    """
    ordered = order(program)
    async with running(boxes, ordered):
        assert (await ended(boxes, ordered.name)).exit_code == 0
    assert not folder_of(boxes, ordered.name).path.exists()


async def test_another_start_of_the_machine(boxes):
    """What ran before the machine was started anew has ended."""
    ordered = order()
    async with running(boxes, ordered):
        folder = folder_of(boxes, ordered.name)
        os.kill(keeper_of(boxes, ordered.name), signal.SIGKILL)
        await ended(boxes, ordered.name)
        folder.state.write_text(json.dumps(folders.read(folder.state) | {"boot": "another"}))
        assert (await boxes.get(ordered.name)).detail == "The machine was started anew."


@pytest.mark.parametrize(
    ("name", "value", "leads"),
    [
        ("CALLBACK_URL", "http://127.0.0.1:8000", True),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000/model", True),
        ("REPO_URL", "http://127.0.0.1:8000/git/repository.git", False),
        ("NOTE", "http://127.0.0.1:80001/work.git", False),
    ],
)
def test_what_leads_to_the_door(name, value, leads):
    """Where the door has another port its own address is rewritten, and none that only begins like it."""
    given = {"command": [], "cwd": "/", "rlimits": {}, "env": {name: value}}
    [told] = keeper._orders_of_worker(given, 9)["env"].values()
    assert told == (value.replace(":8000", ":9") if leads else value)
