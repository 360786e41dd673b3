"""Sandboxes on this machine: each is a folder, a keeper process that outlives this server, and a box."""

import asyncio
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.providers import (
    Capabilities,
    Machine,
    MachineState,
    Order,
    OrderRefused,
    ProviderError,
    ProviderFull,
    Tier,
)
from orchestrator.providers.local import folder as folders
from orchestrator.providers.local import log, removal, starting
from orchestrator.providers.local.folder import Folder
from orchestrator.providers.local.launch import DOOR
from orchestrator.providers.local.starting import Way

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
DEPLOYMENT = "deployment"  # the label
SERVER = "server"
PLACE = ".place"
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.01


class LocalProvider:
    """The name of a sandbox is that of its folder below `folder`. `tier` leaves no choice but this one."""

    name = "local"

    def __init__(
        self, folder: Path, *, deployment: str, machines: int, python: str = sys.executable, tier: Tier | None = None
    ) -> None:
        self._root = folder.absolute()
        self._deployment = deployment
        self._machines = machines
        self._python = python
        self._tier = tier
        self._creating: set[str] = set()
        self._way: Way | None = None

    async def start(self, server_address: str) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        await removal.sweep(self._root)
        async with removal.alone(self._root, SERVER):
            fresh = self._root / f".{SERVER}"
            fresh.write_text(_endpoint(server_address))
            fresh.replace(self._root / SERVER)
        self._way = await starting.find_way(self._root, self._python, self._tier)

    def place(self) -> str:
        """The name of this folder's sandboxes among all that are local somewhere; it lies in the folder itself."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folders.named_once(self._root / PLACE)

    async def close(self) -> None:
        """Nothing is held: keepers belong to nobody."""

    def capabilities(self) -> Capabilities:
        way = self._found_way()
        return Capabilities(tier=way.tier, callback_url=DOOR, limits=way.limits, machines=self._machines, note=way.note)

    async def create(self, order: Order) -> Machine:
        way = self._found_way()
        folder = self._folder(order.name)
        if folder is None:
            raise OrderRefused(f"{order.name!r} is no name for a sandbox: letters, digits and hyphens, at most 100.")
        starting.check(order)
        async with removal.alone(self._root, order.name):
            await _settled(folder)
            machine = _machine(folder)
            if machine and machine.labels != order.labels:
                raise OrderRefused(f"Another sandbox has the name {order.name} already.")
            if machine and machine.state is not MachineState.STARTING:
                return machine
            with self._place(order.name):
                await removal.remove(folder)  # what never ran, because its server died before it could
                try:
                    await starting.start(folder, order, way, self._root / SERVER)
                except ProviderError:
                    await removal.remove(folder)
                    raise
            machine = _machine(folder)
            assert machine
            return machine

    async def get(self, name: str) -> Machine | None:
        folder = self._folder(name)
        return _machine(folder) if folder else None

    async def list(self) -> Sequence[Machine]:
        machines = (_machine(Folder(path)) for path in sorted(self._root.iterdir()) if NAME.fullmatch(path.name))
        return [machine for machine in machines if machine and machine.labels.get(DEPLOYMENT) == self._deployment]

    async def delete(self, name: str) -> None:
        folder = self._folder(name)
        if folder is None:
            return
        with _told():
            async with removal.alone(self._root, name):
                await removal.remove(folder)

    async def log(self, name: str, lines: int) -> str:
        folder = self._folder(name)
        with _told():
            return await asyncio.to_thread(log.tail, folder, lines) if folder else ""

    def _found_way(self) -> Way:
        if self._way is None:
            raise RuntimeError("The local provider knows nothing of this machine before it is started.")
        return self._way

    def _folder(self, name: str) -> Folder | None:
        return Folder(self._root / name) if NAME.fullmatch(name) else None

    @contextlib.contextmanager
    def _place(self, name: str) -> Iterator[None]:
        running = {path.name for path in self._root.iterdir() if NAME.fullmatch(path.name) and _is_live(Folder(path))}
        if len(running | self._creating) >= self._machines:
            raise ProviderFull(f"All {self._machines} places for sandboxes on this machine are taken.")
        self._creating.add(name)
        try:
            yield
        finally:
            self._creating.discard(name)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What the system refuses here concerns this sandbox alone, and may succeed later."""
    try:
        yield
    except OSError as error:
        raise ProviderError(f"This machine refused: {error}.") from error


async def _settled(folder: Folder) -> None:
    """Wait for a start that a server before us began: its keeper goes on with it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_SECONDS):
            while _is_live(folder) and not _has_run(folder):  # noqa: ASYNC110 - so it says in a file
                await asyncio.sleep(POLL_SECONDS)


def _machine(folder: Folder) -> Machine | None:
    order = folders.read(folder.order)
    if order is None:
        return None
    live = _is_live(folder)  # asked first: what has ended by then has also said how
    end = folders.read(folder.end)
    state = folders.read(folder.state) or {}
    machine = {"name": folder.path.name, "provider_id": folder.path.name, "labels": order["labels"]}
    if end is not None:
        told = {"exit_code": end["exit"], "out_of_memory": end["oom"], "detail": end["detail"]}
        return Machine(**machine, state=MachineState.ENDED, **told)
    if live:
        return Machine(**machine, state=MachineState.RUNNING if "box" in state else MachineState.STARTING)
    if "box" not in state and not folders.is_spoilt(folder.state):
        return Machine(**machine, state=MachineState.STARTING)
    return Machine(**machine, state=MachineState.ENDED, detail=removal.unexplained(state))


def _is_live(folder: Folder) -> bool:
    return folders.is_locked(folder.lock)


def _has_run(folder: Folder) -> bool:
    return "box" in (folders.read(folder.state) or {})


def _endpoint(address: str) -> str:
    """`host:port` of an address; a server that listens everywhere also listens on loopback."""
    endpoint = address.rpartition("://")[2].partition("/")[0]
    host, _, port = endpoint.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"  # noqa: S104 - dialled, not bound
