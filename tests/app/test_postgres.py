"""The embedded PostgreSQL: whatever ends its owner ends it too, and nothing left behind hinders the next start."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from app import postgres, postgres_folder
from app.errors import CannotStart
from app.postgres import EmbeddedPostgres, attached
from tests.databases import quick_folder

ROOT = Path(postgres.__file__).parents[1]
NOBODY = 65534

# An owner in a process of its own. It starts a child that closes nothing, as a careless library would.
OWNER = """
import asyncio, pathlib, subprocess, sys
from app.postgres import EmbeddedPostgres

async def main():
    owner = EmbeddedPostgres(pathlib.Path(sys.argv[1]), holder="omoi up")
    await owner.start()
    child = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
    print(owner.url, child.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def data() -> Iterator[Path]:
    """A short path, so that the socket is in the folder too; open to all, as a home folder's parents are."""
    folder = quick_folder()
    yield folder / "data"
    wait_until(lambda: not servers(folder))
    shutil.rmtree(folder)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def servers(data: Path) -> list[psutil.Process]:
    """The keeper and the main process of PostgreSQL of this folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(data) in " ".join(process.info["cmdline"] or []) and "-D" in process.info["cmdline"]
    ]


def keepers(data: Path) -> list[psutil.Process]:
    return [process for process in servers(data) if "postgres_keeper.py" in " ".join(process.info["cmdline"])]


def main_process(data: Path) -> int:
    return int((data / "postgres" / "postmaster.pid").read_text().split()[0])


async def query(url: str, sql: str) -> object:
    host = make_url(url).query["host"]
    connection = await asyncpg.connect(host=host, port=5432, user="postgres", database="omoi")
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def query_when_back(url: str, sql: str) -> object:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                return await query(url, sql)
            await asyncio.sleep(0.02)


@contextlib.contextmanager
def owner_process(data: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A separate owner that serves, and its URL. It is killed in the end, and so is what it started."""
    command = [sys.executable, "-c", OWNER, str(data)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as owner:
        url, child = owner.stdout.readline().decode().split()
        try:
            yield owner, url
        finally:
            owner.kill()
            os.kill(int(child), signal.SIGKILL)


@contextlib.asynccontextmanager
async def serving(data: Path):
    owner = EmbeddedPostgres(data, holder="omoi up")
    await owner.start()
    try:
        yield owner
    finally:
        await owner.stop()


async def test_serves_and_keeps_its_data(data: Path, monkeypatch: pytest.MonkeyPatch):
    """What was written is there after a stop and a start, in UTC, whatever the environment says of another server."""
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    async with serving(data) as owner:
        await query(owner.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with serving(data) as owner:
        engine = create_async_engine(owner.url)
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT answer FROM kept")) == 42
            assert await connection.scalar(text("SHOW timezone")) == "UTC"
            assert await connection.scalar(text("SHOW listen_addresses")) == ""
        await engine.dispose()


async def test_stop_is_final_and_idempotent(data: Path):
    """After stop() no process, no zombie and no lock is left, and stopping again does nothing."""
    others = {child.pid for child in psutil.Process().children()}
    async with serving(data) as owner:
        assert servers(data)
        await owner.stop()
        assert not servers(data)
        assert not {child.pid for child in psutil.Process().children()} - others
    await owner.stop()
    async with serving(data):
        pass


async def test_dies_with_its_owner(data: Path):
    """An owner killed with -9 takes PostgreSQL along in order, whatever else it had started."""
    with owner_process(data) as (owner, _):
        owner.kill()
        await asyncio.to_thread(wait_until, lambda: not servers(data))
    assert (data / "postgres.log").read_text().endswith("database system is shut down\n")


async def test_starts_right_after_a_kill(data: Path):
    """A new start at the very moment of the kill waits for the old server to go, and has its data."""
    with owner_process(data) as (owner, url):
        await query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        owner.kill()
        async with serving(data) as next_owner:
            assert await query(next_owner.url, "SELECT answer FROM kept") == 42


async def test_sees_nothing_of_the_owners_environment(data: Path, monkeypatch: pytest.MonkeyPatch):
    """Secrets in the environment stay with the owner."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    async with serving(data):
        assert ["ANTHROPIC_API_KEY" in process.environ() for process in servers(data)] == [False, False]


async def test_ctrl_c_is_for_the_owner(data: Path):
    """SIGINT to the owner's process group, and any polite signal to the keeper, leave PostgreSQL at work."""
    async with serving(data) as owner:
        (keeper,) = keepers(data)
        assert os.getsid(keeper.pid) != os.getsid(0)
        assert os.getpgid(main_process(data)) != os.getpgid(0)
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            keeper.send_signal(sent)
        assert await query(owner.url, "SELECT 1") == 1
        assert keeper.is_running()


async def test_second_owner_is_refused_by_name(data: Path):
    """Two servers never share a folder; the second one learns who has it, and harms nobody."""
    async with serving(data) as owner:
        second = EmbeddedPostgres(data, holder="omoi up")
        with pytest.raises(CannotStart, match=rf"{data} is in use by process {os.getpid()} \(omoi up\)"):
            await second.start()
        await second.stop()
        assert await query(owner.url, "SELECT 1") == 1


async def test_command_attaches_to_a_running_server(data: Path):
    """A command uses the database of the server that runs, and leaves it running."""
    with owner_process(data) as (_, url):
        async with attached(data, holder="omoi token") as attached_url:
            assert attached_url == url
            await query(attached_url, "CREATE TABLE seen ()")
        assert await query(url, "SELECT count(*) FROM seen") == 0


async def test_command_alone_brings_its_own_server(data: Path):
    """With no server a command has one for its duration, and nothing is left after it."""
    async with attached(data, holder="omoi token") as url:
        assert await query(url, "SELECT 1") == 1
    assert not servers(data)


async def test_commands_take_turns(data: Path):
    """With no server, a command never joins the one that another command started for itself: it has its own after."""
    entered = asyncio.Event()

    async def second() -> object:
        async with attached(data, holder="second") as url:
            entered.set()
            return await query(url, "SELECT 2")

    async with attached(data, holder="first") as url:
        task = asyncio.create_task(second())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(entered.wait(), 0.5)
        assert await query(url, "SELECT 1") == 1
    assert await task == 2


async def test_commands_at_once_all_work(data: Path):
    """Several commands at the same moment, where there is not even a folder yet."""

    async def command(number: int) -> object:
        async with attached(data, holder=f"command {number}") as url:
            return await query(url, f"SELECT {number}")

    assert await asyncio.gather(*(command(number) for number in range(3))) == [0, 1, 2]
    assert not servers(data)


async def test_command_waits_for_a_server_that_starts(data: Path):
    """A command that comes while the server makes its database joins it."""
    owner = EmbeddedPostgres(data, holder="omoi up")
    starting = asyncio.create_task(owner.start())
    await asyncio.to_thread(wait_until, (data / "omoi.lock").exists)
    async with attached(data, holder="omoi token") as url:
        await starting
        assert url == owner.url
    await owner.stop()


@pytest.mark.parametrize("victim", [main_process, lambda data: keepers(data)[0].pid], ids=["postgres", "keeper"])
async def test_watch_brings_it_back(data: Path, victim: Callable[[Path], int]):
    """PostgreSQL, or its keeper, killed with -9: it comes back at the same URL with what was committed."""
    async with serving(data) as owner:
        watching = asyncio.create_task(owner.watch())
        await query(owner.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        (before,), url = keepers(data), owner.url
        os.kill(victim(data), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: keepers(data) not in ([], [before]))
        assert await query_when_back(url, "SELECT answer FROM kept") == 42
        assert owner.url == url
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


async def test_stop_ends_a_server_without_keeper(data: Path):
    """Even when the keeper was killed, and nobody watched, stop() leaves no server behind."""
    async with serving(data):
        keepers(data)[0].kill()
    assert not servers(data)


async def test_interrupted_creation_is_no_obstacle(data: Path):
    """A first start killed at any moment: the next one makes the database anew."""
    command = [sys.executable, "-c", OWNER, str(data)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as first:
        wait_until((data / "postgres.new" / "base").exists)
        first.kill()
    assert not (data / "postgres").exists()
    async with serving(data) as owner:
        assert await query(owner.url, "SELECT 1") == 1
    assert not (data / "postgres.new").exists()


async def test_stale_files_are_no_obstacle(data: Path):
    """A postmaster.pid whose number belongs to somebody alive, a socket and a claim: none of them holds a start up."""
    async with serving(data):
        pass
    (data / "postgres" / "postmaster.pid").write_text(f"{os.getppid()}\n{data}\n0\n5432\n{data}\n\n0 0\nready\n")
    (data / "socket" / ".s.PGSQL.5432").touch()
    (data / "socket" / ".s.PGSQL.5432.lock").write_text(f"{os.getppid()}\n")
    lock = data / "omoi.lock"
    claim = {"pid": os.getppid(), "holder": "omoi up", "socket": str(data / "socket"), "inode": lock.stat().st_ino}
    lock.write_text(json.dumps(claim))
    async with attached(data, holder="omoi token") as url:
        assert await query(url, "SELECT 1") == 1


async def test_copy_is_a_folder_of_its_own(data: Path):
    """A copied folder names the original's owner, and still gets a server of its own."""
    async with serving(data) as owner:
        copy = data.parent / "copy"
        copy.mkdir()
        shutil.copy(data / "omoi.lock", copy)
        async with attached(copy, holder="omoi token") as url:
            assert url != owner.url


@pytest.mark.parametrize("name", ["with, spaces", "ünïcödé 北", 'it\'s "50%" & #1', "x" * 120])
async def test_any_path_will_do(data: Path, name: str):
    """Names with spaces, commas, quotes and letters of any kind, and paths too long for a socket."""
    async with serving(data / name) as owner, attached(data / name, holder="omoi token") as url:
        assert await query(url, "SELECT 1") == 1
        folder = Path(make_url(owner.url).query["host"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder == data / name / "socket") != (len(name) > 100 or "," in name)
    assert folder.exists() == (folder.parent == data / name)


async def test_modes_of_folders_stay(data: Path):
    """Private folders above stay private, also for root, and what is new is private too."""
    private = data.parent / "private"
    private.mkdir(mode=0o700)
    async with serving(private / "data"):
        folders = [private, private / "data", private / "data" / "postgres", private / "data" / "socket"]
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
        assert {folder.stat().st_uid for folder in folders} == {os.geteuid()}


async def test_other_major_version_is_refused(data: Path):
    """A folder of another major version is named, with what to do, and left alone."""
    async with serving(data):
        pass
    (data / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(CannotStart, match=r"is of PostgreSQL 17, and this is 18\. .* OMOI_DATA"):
        await EmbeddedPostgres(data, holder="omoi up").start()


async def test_folder_with_other_things_is_refused(data: Path):
    """Files of somebody else's where the database would be are kept."""
    (data / "postgres").mkdir(parents=True)
    (data / "postgres" / "thesis.txt").write_text("precious")
    with pytest.raises(CannotStart, match="holds no database"):
        await EmbeddedPostgres(data, holder="omoi up").start()
    assert (data / "postgres" / "thesis.txt").read_text() == "precious"


async def test_failing_start_says_why(data: Path):
    """When PostgreSQL gives up, its own last word is in the refusal, and the folder is free again."""
    async with serving(data):
        pass
    with (data / "postgres" / "postgresql.conf").open("a") as settings:
        settings.write("work_mem = 'a lot'\n")
    for _ in range(2):
        with pytest.raises(CannotStart, match=r"did not start: .*(work_mem|configuration file).*postgres\.log"):
            await EmbeddedPostgres(data, holder="omoi up").start()


async def test_log_stays_bounded(data: Path):
    """A log that has grown is set aside at the next start; one earlier log is kept."""
    async with serving(data):
        pass
    (data / "postgres.log").write_bytes(b"x" * postgres_folder.LOG_BYTES)
    async with serving(data):
        pass
    assert (data / "postgres.log").stat().st_size < 10_000
    assert (data / "postgres.log.1").stat().st_size == postgres_folder.LOG_BYTES


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounts a small file system")
async def test_full_disk_is_named(data: Path):
    """A disk that is full while the database is made is the reason that is given."""
    data.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "omoi", data], check=False).returncode:
        pytest.skip("may not mount")
    try:
        with pytest.raises(CannotStart, match="No space left on device"):
            await EmbeddedPostgres(data, holder="omoi up").start()
    finally:
        subprocess.run(["umount", data], check=True)


def ordinary(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run as nobody, with an interpreter that nobody may run; skips where there is none."""
    version = f"python3.{sys.version_info.minor}"
    python = next((p for p in (sys.executable, f"/usr/bin/{version}") if _runs_as_nobody(p)), None)
    if python is None:
        pytest.skip("no interpreter that an ordinary user may run")
    return _as_nobody([python, "-c", code, str(folder)])


def _as_nobody(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        *(command,),
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _runs_as_nobody(python: str) -> bool:
    try:
        return _as_nobody([python, "-c", "import asyncpg, sqlalchemy, app.postgres"]).returncode == 0
    except OSError:
        return False


ORDINARY = """
import asyncio, pathlib, sys
from app.errors import CannotStart
from app.postgres import attached

async def main():
    async with attached(pathlib.Path(sys.argv[1]), holder="test") as url:
        print(url)

try:
    asyncio.run(main())
except CannotStart as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_ordinary_user(data: Path):
    """An ordinary user needs no user namespace and gets the folder for themselves."""
    data.mkdir(mode=0o700)
    os.chown(data, NOBODY, NOBODY)
    data.parent.chmod(0o755)
    done = ordinary(ORDINARY, data)
    assert done.stdout.startswith("postgresql+asyncpg://postgres@/omoi?host="), done.stderr
    assert (data / "postgres").stat().st_uid == NOBODY


def test_unwritable_folder_is_refused(data: Path):
    """Who may not write in the data folder is told which folder, and what to do."""
    data.parent.chmod(0o555)
    if os.geteuid():
        done = subprocess.run(
            [sys.executable, "-c", ORDINARY, data], cwd=ROOT, capture_output=True, text=True, check=False
        )
    else:
        done = ordinary(ORDINARY, data)
    data.parent.chmod(0o755)
    assert done.returncode == 1
    assert "Permission denied" in done.stderr
    assert str(data) in done.stderr
    assert done.stderr.strip().endswith("OMOI_DATA.")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a user namespace")
async def test_root_without_user_namespaces_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch):
    """Where root cannot become somebody else, the way out is named."""
    monkeypatch.setenv("PATH", str(data))
    with pytest.raises(CannotStart, match=r"as root .* DATABASE_URL"):
        await EmbeddedPostgres(data, holder="omoi up").start()


async def test_platform_without_binaries_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the wheel is missing, the way out is named."""
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    with pytest.raises(CannotStart, match=r"no embedded PostgreSQL for this platform.* DATABASE_URL"):
        await EmbeddedPostgres(data, holder="omoi up").start()
