"""What a provider of machines is: boxes made by name, found by name, and gone when deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.enums import Described
from app.errors import AppError


class MachineState(Described):
    STARTING = "starting", "Asked for, but its worker does not run yet."
    RUNNING = "running", "Its worker runs."
    ENDED = "ended", "Its worker has ended, or was killed."


class Tier(Described):
    NAMESPACES = "namespaces", "Each sandbox has its own processes, network, user and files."
    PROCESS = "process", "Each sandbox is only a process of its own; nothing keeps it from this machine."
    REMOTE = "remote", "Each sandbox is a machine elsewhere."


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One machine, as it shall be. The name is the key: ordering it twice gives one machine."""

    name: str
    labels: Mapping[str, str]  # whose it is; a machine of the same name with other labels is not adopted
    env: Mapping[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)  # relative to the worker's home
    cpu: int = 2
    memory_gb: int = 4
    disk_gb: int = 10
    snapshot: str | None = None
    image: str | None = None
    reachable: Sequence[str] = ()  # hosts, or host:port; the server itself always is
    reachable_in_public: Sequence[str] = ()  # the same, but not where a name leads into a private network
    open_network: bool = False  # every public host
    life_seconds: float = 6 * 3600.0  # after which the provider removes it, whoever forgot it


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    name: str
    provider_id: str
    labels: Mapping[str, str]
    state: MachineState
    exit_code: int | None = None  # of the worker, once it ENDED; 128 + n for a signal
    out_of_memory: bool = False
    detail: str = ""  # what the provider knows about its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    tier: Tier
    callback_url: str  # how a worker in one of its machines reaches this server
    limits: frozenset[str]  # of {"memory", "cpu", "pids", "disk"}: those that it enforces
    machines: int  # at once, at most
    note: str = ""  # what an operator should know, in a sentence


class ProviderError(AppError):
    """The provider refused, or could not. Trying again may help."""

    code = "PROVIDER_UNAVAILABLE"


class ProviderFull(ProviderError):
    """No room now: a quota or a limit. The same order succeeds later."""


class OrderRefused(ProviderError):
    """An order that can never be met; its sentence says why."""


class Provider(Protocol):
    name: str

    async def start(self, server_address: str) -> None:
        """Find out what this machine allows, and let machines that already run find the server at this address."""

    async def close(self) -> None:
        """Let go of what the server holds. Machines go on."""

    def capabilities(self) -> Capabilities: ...

    async def create(self, order: Order) -> Machine:
        """The machine of this name, made now, or adopted when its labels are the order's."""

    async def get(self, name: str) -> Machine | None: ...

    async def list(self) -> Sequence[Machine]:
        """Every machine that carries this deployment's label, ended ones too, until they are deleted."""

    async def delete(self, name: str) -> None:
        """End it with all that runs in it and remove every trace. What is not there is deleted already."""

    async def log(self, name: str, lines: int) -> str:
        """The worker's own output, the last lines of it."""
