"""How a sandbox of this machine is started, and which way this machine allows."""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.providers import Order, OrderRefused, ProviderError, Tier
from orchestrator.providers.local import box, log, removal
from orchestrator.providers.local import folder as folders
from orchestrator.providers.local.folder import Folder
from orchestrator.providers.local.hosts import Hosts, Malformed
from orchestrator.providers.local.launch import DOOR
from orchestrator.providers.local.limits import Limits

SOURCE = Path(__file__).parents[3]
KEEPER = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from orchestrator.providers.local import keeper; keeper.main(sys.argv[2])"
)
WORKER = "worker.pyz"
PIDS = 1024
OPEN_FILES = 65_536
DISK_SECONDS = 10.0
GRACE_SECONDS = 10.0  # between asking the worker to end and ending it
START_SECONDS = 30.0
GIB = 1024**3
APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
NEW_COUNTING = (5, 14)  # since this Linux the processes of a user are counted for each user namespace


@dataclass(frozen=True, slots=True)
class Way:
    """What this machine allows: `program` is the bubblewrap that works here, where one does."""

    tier: Tier
    python: str
    program: str = ""
    visible: tuple[Path, ...] = ()
    limits: frozenset[str] = frozenset()
    note: str = ""


async def find_way(root: Path, python: str, tier: Tier | None) -> Way:
    """The best way in which a sandbox really starts here; each is tried."""
    reasons = []
    for way in await _ways(root, python, tier):
        try:
            held = await _try(root, way)
        except ProviderError as error:
            reasons.append(f"{way.program or 'process'}: {error.message}")
        else:
            note = _note(reasons) if way.tier is Tier.PROCESS else ""
            return Way(way.tier, python, way.program, way.visible, held, note)
    raise ProviderError(f"No sandbox starts on this machine. {' '.join(reasons) or 'There is no bubblewrap.'}")


def check(order: Order) -> None:
    """Refuse what could never be started."""
    try:
        Hosts.of(order.reachable, in_public=order.reachable_in_public, open_network=order.open_network)
    except Malformed as error:
        raise OrderRefused(f"{error} is no host that a sandbox could reach.") from error
    for name in order.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise OrderRefused(f"{name} is no file below the worker's home.")


async def start(folder: Folder, order: Order, way: Way, server: Path) -> None:
    """Returns when the worker runs; refused with the reason that the system gave."""
    try:
        fresh = Folder(folder.path.with_name(f"{removal.NEW}{folder.path.name}"))
        await removal.remove(fresh)
        await asyncio.to_thread(_furnish, fresh, order)
        fresh.path.rename(folder.path)  # at once: half of it never passes for a sandbox
        await asyncio.to_thread(folders.keep, folder.path.parent)
        reason = await _keep(folder, _orders(folder, order, way, server))
    except OSError as error:
        reason = str(error)
    if reason:
        raise ProviderError(f"The sandbox did not start: {reason}")


async def _ways(root: Path, python: str, tier: Tier | None) -> list[Way]:
    ways = []
    if tier is not Tier.PROCESS:
        shown = tuple(box.visible(await _prefixes(python), (Path.home(), root)))
        ways += [Way(Tier.NAMESPACES, python, program, shown) for program in box.programs()]
    if tier is not Tier.NAMESPACES:
        ways.append(Way(Tier.PROCESS, python))
    return ways


async def _prefixes(python: str) -> list[Path]:
    """The folders without which this interpreter does not run, by each of their names."""
    words = "import sys; print(sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, sep='\\n')"
    asked = await asyncio.create_subprocess_exec(python, "-I", "-c", words, stdout=PIPE, cwd="/")
    out, _ = await asked.communicate()
    return _with_links(python, [Path(line) for line in out.decode().splitlines()])


def _with_links(python: str, named: list[Path]) -> list[Path]:
    link, chain = Path(python), []
    while link.is_symlink():
        link = link.parent / link.readlink()
        chain.append(Path(os.path.normpath(link)).parent.parent)
    return [*named, *chain, *(path.resolve() for path in named)]


async def _try(root: Path, way: Way) -> frozenset[str]:
    """Start a worker that has nothing to do, and read which limits it had."""
    folder = Folder(root / f"{removal.TRIAL}{secrets.token_hex(8)}")
    async with removal.alone(root, folder.path.name):
        try:
            await start(folder, Order(name="try", labels={}, env={}, files={WORKER: b""}), way, root / "server")
            return frozenset((folders.read(folder.state) or {})["limits"])
        finally:
            await removal.remove(folder)


def _note(reasons: list[str]) -> str:
    sentence = "Sandboxes here are only processes: nothing keeps them from this machine."
    with contextlib.suppress(OSError):
        if APPARMOR.read_text().strip() == "1":
            reasons = [*reasons, "AppArmor lets only programs with a profile for it make user namespaces."]
    return " ".join([sentence, *reasons])


def _furnish(folder: Folder, order: Order) -> None:
    folder.path.mkdir(mode=0o700)
    folder.home.mkdir(mode=0o700)
    folder.tmp.mkdir(mode=0o700)
    box.prepare(folder)
    for name, content in order.files.items():
        path = folder.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folders.write(folder.order, {"labels": dict(order.labels)})


def _orders(folder: Folder, order: Order, way: Way, server: Path) -> dict[str, Any]:
    """All that the keeper has to know. It is secret, because the worker's environment is."""
    is_boxed = way.tier is Tier.NAMESPACES
    inside = box.INSIDE if is_boxed else str(Path(__file__).with_name("inside.py"))
    starts_in = box.command(way.program, folder, way.visible) if is_boxed else []
    disk = order.disk_gb * GIB
    rlimits = {"RLIMIT_FSIZE": disk, "RLIMIT_NOFILE": OPEN_FILES, "RLIMIT_CORE": 0}
    counted = {"RLIMIT_NPROC": PIDS} if is_boxed and _counts_for_box() else {}
    return {
        "first": [*starts_in, way.python, "-I", "-S", inside, "8000" if is_boxed else "0"],
        "command": [way.python, WORKER],
        "cwd": box.HOME if is_boxed else str(folder.home),
        "env": _env(folder, order, way, is_boxed=is_boxed),
        "rlimits": rlimits | counted,
        "held": ["disk", *(["pids"] if counted else [])],
        "limits": asdict(Limits(order.memory_gb * GIB, order.cpu, PIDS, disk)),
        "disk_seconds": DISK_SECONDS,
        "grace_seconds": GRACE_SECONDS,
        "reachable": list(order.reachable),
        "reachable_in_public": list(order.reachable_in_public),
        "open_network": order.open_network,
        "life_seconds": order.life_seconds,
        "server": str(server),
    }


def _counts_for_box() -> bool:
    """Root is never limited by this, and before Linux 5.14 all of the user's processes counted."""
    release = os.uname().release.split("-")[0].split(".")
    return sys.platform == "linux" and os.geteuid() != 0 and tuple(map(int, release[:2])) >= NEW_COUNTING


def _env(folder: Folder, order: Order, way: Way, *, is_boxed: bool) -> dict[str, str]:
    return {
        **order.env,
        "PATH": f"{Path(way.python).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": box.HOME if is_boxed else str(folder.home),
        "TMPDIR": "/tmp" if is_boxed else str(folder.tmp),  # noqa: S108 - the box's own
        "LANG": "C.UTF-8",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), DOOR),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }


async def _keep(folder: Folder, orders: dict[str, Any]) -> str:
    """Hand the orders to a keeper. The answer is the reason for which the worker does not run, or empty."""
    try:
        answer = await asyncio.to_thread(_ask, folder, json.dumps(orders).encode())
    except subprocess.TimeoutExpired:
        return f"its keeper said nothing within {START_SECONDS:g} seconds."
    if answer:
        return str(json.loads(answer)["reason"])
    return log.tail(folder, 1) or "its keeper ended without a word."


def _ask(folder: Folder, orders: bytes) -> bytes:
    """For a thread: uvloop's own subprocesses do not hear the end of a pipe that a keeper has inherited."""
    with _errors(folder) as errors:
        keeper = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", "-c", KEEPER, str(SOURCE), str(folder.path)],
            input=orders,
            stdout=PIPE,
            stderr=errors,
            start_new_session=True,
            env={},
            cwd="/",
            timeout=START_SECONDS,
            check=False,
        )
    return keeper.stdout


@contextlib.contextmanager
def _errors(folder: Folder) -> Iterator[int]:
    descriptor = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
