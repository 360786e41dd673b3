"""A box takes no more of this machine than was ordered, and how it ended is told apart."""

import pytest

from orchestrator.providers import MachineState
from orchestrator.providers.local import folder as folders
from orchestrator.providers.local import limits, starting
from orchestrator.providers.local.folder import Folder
from orchestrator.providers.local.limits import Limits
from tests.orchestrator.providers.boxes import ended, order, outcome, running, says

GIB = 1024**3
ORDERED = Limits(memory_bytes=3 * GIB, cpu=2, pids=77, disk_bytes=GIB)


def needs(boxes, limit):
    if limit not in boxes.capabilities().limits:
        pytest.skip(f"This machine does not let us limit {limit}.")


async def test_too_much_memory_is_told_from_a_kill(boxes):
    """Who takes more memory than ordered is ended, and it is said that this was the cause."""
    needs(boxes, "memory")
    program = "held = [bytearray(64 << 20) for _ in range(20)]"
    machine = (await outcome(boxes, order(program, memory_gb=1))).machine
    assert (machine.exit_code, machine.out_of_memory) == (137, True)


async def test_a_fork_bomb_stays_in_its_box(boxes):
    """Processes beyond the limit cannot be started, and those below it end with the box."""
    needs(boxes, "pids")
    program = """
        import os, time
        started = 0
        try:
            while os.fork():
                started += 1
            time.sleep(3600)
        except OSError as error:
            print(f"[{started}]", flush=True)
    """
    [started] = (await outcome(boxes, order(program))).said
    assert started in range(starting.PIDS - 20, starting.PIDS)


async def test_the_processor_is_shared_as_ordered(boxes, sandboxes):
    """The worker is in a group with as much of the processor as ordered."""
    needs(boxes, "cpu")
    ordered = order(cpu=1)
    async with running(boxes, ordered):
        state = folders.read(Folder(sandboxes / ordered.name).state)
        groups = [folder for folder in map(folders.Path, state["groups"]) if limits.members([folder])]
        values = [(group / name) for group in groups for name in ("cpu.cfs_quota_us", "cpu.max")]
        assert [path.read_text().split()[0] for path in values if path.exists()] == ["100000"]


async def test_too_much_on_the_disk_ends_the_box(boxes, monkeypatch):
    """A single file has the limit of all; a folder that outgrows it ends the box, which says so."""
    monkeypatch.setattr(starting, "DISK_SECONDS", 0.05)
    program = """
        import os, time
        try:
            os.posix_fallocate(os.open("one", os.O_RDWR | os.O_CREAT), 0, (1 << 30) + 1)
        except OSError as error:
            print(error.strerror, flush=True)
        for name in ("two", "/tmp/three"):
            os.posix_fallocate(os.open(name, os.O_RDWR | os.O_CREAT), 0, 600 << 20)
        time.sleep(3600)
    """
    done = await outcome(boxes, order(program, disk_gb=1))
    assert done.lines == ["File too large"]
    assert (done.machine.exit_code, "disk limit" in done.machine.detail) == (137, True)


async def test_a_life_ends(boxes):
    """When its time is over a worker is asked to end, and what it then says is its end."""
    program = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        time.sleep(3600)
    """
    machine = (await outcome(boxes, order(program, life_seconds=0.5))).machine
    assert (machine.exit_code, machine.detail) == (5, "Its time was over.")


async def test_a_life_ends_unasked(boxes, monkeypatch):
    """Who does not listen is ended all the same."""
    monkeypatch.setattr(starting, "GRACE_SECONDS", 0.1)
    program = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(3600)"
    machine = (await outcome(boxes, order(program, life_seconds=0.5))).machine
    assert (machine.exit_code, machine.detail) == (137, "Its time was over.")


async def test_the_log_is_bounded(boxes, sandboxes):
    """Of very much output the newest is kept, in a bounded part of the disk."""
    program = "for n in range(400_000): print(f'{n:060}')"
    ordered = order(program)
    async with running(boxes, ordered):
        assert (await ended(boxes, ordered.name)).state is MachineState.ENDED
        folder = Folder(sandboxes / ordered.name)
        assert folder.log.stat().st_size + folder.older_log.stat().st_size <= 8 * 1024 * 1024
        lines = (await boxes.log(ordered.name, 50_000)).splitlines()
        assert [int(line) for line in lines] == list(range(350_000, 400_000))


async def test_no_group_is_left(boxes, sandboxes):
    """The control groups of a sandbox go with it."""
    ordered = order()
    async with running(boxes, ordered):
        await says(boxes, ordered.name, "up")
        groups = [folders.Path(path) for path in folders.read(Folder(sandboxes / ordered.name).state)["groups"]]
    assert [path for path in groups if path.exists()] == []


def test_groups_of_version_2(tmp_path):
    """On version 2 the group stands beside our own, below the nearest one that is ours to divide."""
    session = tmp_path / "user" / "app.slice"
    (session / "terminal.scope").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    for name, content in {"cgroup.procs": "", "cgroup.subtree_control": "memory pids cpu"}.items():
        (session / name).write_text(content)
    own = tmp_path / "own"
    own.write_text("0::/user/app.slice/terminal.scope\n")
    group = limits.make("box", ORDERED, root=tmp_path, own=own)
    assert group.folders() == [session / "box"]
    written = {path.name: path.read_text() for path in (session / "box").iterdir()}
    assert written["memory.max"] == str(3 * GIB)
    assert (written["memory.oom.group"], written["memory.swap.max"]) == ("1", "0")


def test_where_groups_are_not_ours(tmp_path):
    """Without a group that may be divided there are no limits by groups, and nothing to remove."""
    own = tmp_path / "own"
    own.write_text("0::/\n")
    (tmp_path / "cgroup.controllers").write_text("memory")
    group = limits.make("box", ORDERED, root=tmp_path, own=own)
    assert (group.holds, group.folders(), group.oom_kills()) == (frozenset(), [], 0)
    group.remove()
