"""A box shows its worker nothing of this machine but the system's programs, read-only."""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.orchestrator.providers.boxes import order, outcome, running, says

SECRET = "tok-9b1f3c5e7d"


@contextlib.contextmanager
def listener():
    """Something that this machine alone may talk to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def found(boxes, program: str, **given):
    """What a program in a box says as its line of JSON; it has `tried` to see how something is refused."""
    tried = """
import json, os, pathlib, socket, subprocess
def tried(function, *arguments):
    try: return function(*arguments) and "done"
    except OSError as error: return os.strerror(error.errno)
"""
    return (await outcome(boxes, order(tried + program, **given))).said


async def test_loopback_of_this_machine_is_elsewhere(boxes):
    """A port on this machine's loopback cannot be reached, directly or by any of its addresses."""
    with listener() as port:
        program = "print(json.dumps([tried(socket.create_connection, (h, int(os.environ['P']))) for h in HOSTS]))"
        hosts = ["127.0.0.1", "127.0.0.2", "169.254.169.254", "192.0.2.1"]
        assert await found(boxes, f"HOSTS = {hosts}\n{program}", env={"P": str(port)}) == [
            "Connection refused",
            "Connection refused",
            "Network is unreachable",
            "Network is unreachable",
        ]


async def test_the_network_is_one_port(boxes):
    """A box has only loopback, and the door is all that listens there."""
    program = """
listening = [line.split()[1] for line in open("/proc/net/tcp").readlines()[1:]]
print(json.dumps([sorted(name for _, name in socket.if_nameindex()), listening]))
"""
    assert await found(boxes, program) == [["lo"], [f"0100007F:{8000:04X}"]]


async def test_sockets_of_this_machine_are_elsewhere(boxes, sandboxes):
    """Neither a Unix socket in the data folder nor an abstract one can be reached."""
    path = sandboxes.parent / ".s.PGSQL.5432"
    with socket.socket(socket.AF_UNIX) as data, socket.socket(socket.AF_UNIX) as abstract:
        data.bind(str(path))
        data.listen()
        abstract.bind(f"\0omoi-{os.getpid()}")
        abstract.listen()
        program = f"""
names = [{str(path)!r}, "\\0omoi-{os.getpid()}"]
print(json.dumps([tried(socket.socket(socket.AF_UNIX).connect, name) for name in names]))
"""
        assert await found(boxes, program) == ["No such file or directory", "Connection refused"]
    path.unlink()


async def test_files_of_this_machine_are_elsewhere(boxes, sandboxes):
    """The data folder is not there, and of the home folder only what leads to the interpreter."""
    program = f"""
home = pathlib.Path({str(Path.home())!r})
print(json.dumps([os.path.exists({str(sandboxes)!r}), sorted(map(str, home.rglob("*")) if home.exists() else [])]))
"""
    data, home = await found(boxes, program)
    ways = [str(path) for path in boxes._way.visible]
    assert data is False
    assert [path for path in home if not any(path.startswith(way) or way.startswith(path) for way in ways)] == []


async def test_another_box_is_elsewhere(boxes, sandboxes):
    """The processes and the folder of another box cannot be seen."""
    other = order()
    async with running(boxes, other):
        program = f"""
lines = [path.read_bytes().decode() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
print(json.dumps([len(lines), os.path.exists({str(sandboxes / other.name)!r}), os.listdir("/tmp"), os.listdir(".")]))
"""
        interpreter = Path(sys.prefix).relative_to("/").parts  # shown where it lies, be that below the box's own /tmp
        shown = [interpreter[1]] if interpreter[0] == "tmp" else []
        assert await found(boxes, program) == [1, False, shown, ["worker.pyz"]]


async def test_no_privileges(boxes):
    """A worker is an ordinary user without capabilities who can get no more of anything."""
    program = """
status = {line.partition(":")[0]: line.partition(":")[2].strip() for line in open("/proc/self/status")}
unshared = subprocess.run(["unshare", "--user", "true"], stderr=subprocess.DEVNULL).returncode
mounted = subprocess.run(["mount", "-t", "tmpfs", "x", "/tmp"], stderr=subprocess.DEVNULL).returncode
names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
capabilities = max(int(status[name], 16) for name in names)
print(json.dumps([os.getuid(), capabilities, status["NoNewPrivs"], unshared > 0, mounted > 0]))
"""
    assert await found(boxes, program) == [1000, 0, "1", True, True]


async def test_the_system_is_read_only(boxes):
    """Only the home, /tmp and /dev can be written: not the kernel's settings either, whoever started the server."""
    program = """
mounts = [line.split() for line in open("/proc/mounts")]
writable = {mount[1] for mount in mounts if "rw" in mount[3].split(",")}
files = [os.path.join(top, name) for top, _, names in os.walk("/proc") for name in names]
kernel = [file for file in files if "/fd/" not in file and os.access(file, os.W_OK)]
places = ("/", "/usr", "/etc", "/run", "/home", os.path.dirname(os.path.realpath("/proc/self/exe")))
others = sorted(w for w in writable if w not in ("/tmp", "/home/agent") and not w.startswith("/dev"))
print(json.dumps([others, kernel, [place for place in places if os.access(place, os.W_OK)]]))
"""
    assert await found(boxes, program) == [[], [], []]


@pytest.fixture
def ignoring_hang_ups():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


async def test_nothing_is_inherited(boxes, ignoring_hang_ups):
    """A worker has three descriptors, the first of them empty, and the signals as a program expects them."""
    program = """
import signal
open_ones = [int(name) for name in os.listdir("/proc/self/fd") if tried(os.fstat, int(name)) == "done"]
ignored = int([line for line in open("/proc/self/status") if line.startswith("SigIgn")][0].split()[1], 16)
by_python = (signal.SIGPIPE, signal.SIGXFSZ)
others = sum(1 << number - 1 for number in signal.valid_signals() if number not in by_python)
print(json.dumps([open_ones, os.readlink("/proc/self/fd/0"), ignored & others]))
"""
    assert await found(boxes, program) == [[0, 1, 2], "/dev/null", 0]


async def test_a_secret_is_in_no_file_and_no_argument(boxes, sandboxes):
    """What the environment of a worker holds is written nowhere, and nobody sees it in a list of processes."""
    ordered = order(env={"OMOI_SANDBOX_TOKEN": SECRET})
    async with running(boxes, ordered):
        await says(boxes, ordered.name, "up")
        files = [path for path in sandboxes.rglob("*") if path.is_file()]
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
        arguments = [_arguments(path) for path in Path("/proc").glob("[0-9]*")]
        assert any(str(sandboxes / ordered.name).encode() in words for words in arguments)
        assert not any(SECRET.encode() in words for words in arguments)


async def test_folders_are_private(boxes, sandboxes):
    """Nobody but who runs the server can look into a sandbox's folder."""
    ordered = order()
    async with running(boxes, ordered):
        assert (sandboxes / ordered.name).stat().st_mode & 0o777 == 0o700
        assert sandboxes.stat().st_mode & 0o777 == 0o700


def _arguments(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (path / "cmdline").read_bytes()
    return b""
