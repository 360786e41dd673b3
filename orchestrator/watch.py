"""Keep rows and machines together: vouch for what runs, end what has ended, force what was asked to stop."""

import asyncio

import structlog

from app import attempts, events, machines, sandboxes
from app.enums import DesiredState, FailureCode
from app.models import Sandbox
from orchestrator.providers import Machine, MachineState, ProviderError
from orchestrator.site import Site

LOG_LINES = 500
LAST_LINE_CHARS = 500
AT_ONCE = 8
KILLED = 128 + 9

log = structlog.get_logger()


async def run_once(site: Site) -> None:
    """The provider is asked first and the rows are read second: what has ended by then is no longer live."""
    found = {machine.name: machine for machine in await site.provider.list()}
    async with site.db.reading() as session:
        rows = await machines.with_machines(session, site.fleet)
        forced = await machines.to_force(session, site.fleet)
        launching = await machines.in_hand(session, site.fleet)
    running = [name for name, machine in found.items() if machine.state is not MachineState.ENDED]
    if running and rows:
        async with site.db.writing() as session:
            await machines.alive(session, running)
    gate = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for row in rows:
            machine = found.get(row.name)
            if machine is not None or row.id not in launching:  # else one may still appear
                group.create_task(_see_to(site, gate, row, machine, force=row.id in forced))


async def _see_to(
    site: Site, gate: asyncio.Semaphore, sandbox: Sandbox, machine: Machine | None, *, force: bool
) -> None:
    async with gate:
        try:
            await _settle(site, sandbox, machine, force=force)
        except ProviderError as error:  # the others do not wait for this one, which has its turn again
            log.warning("machine_not_settled", sandbox=sandbox.name, error=error.message)


async def _settle(site: Site, sandbox: Sandbox, machine: Machine | None, *, force: bool) -> None:
    ended = sandbox.status in sandboxes.ENDED
    if machine is None and (ended or sandbox.provider_id is not None):
        machine = await site.provider.get(sandbox.name)  # it may have come after the list was made
    if ended:
        await _remove(site, sandbox, machine)
    elif machine is not None and machine.state is MachineState.ENDED:
        await _ended_without_a_word(site, sandbox, machine)
    elif force:
        await _end(site, sandbox, FailureCode.CANCELLED, "It did not stop when it was asked to.")
    elif machine is None:
        await _end_without_machine(site, sandbox)


async def _remove(site: Site, sandbox: Sandbox, machine: Machine | None) -> None:
    """Its last words are kept; then the task may have another machine."""
    last_words = None
    if machine is not None:
        last_words = await _last_words(site, sandbox, LOG_LINES)
        await site.provider.delete(sandbox.name)
    async with site.change("watch") as tx:
        await sandboxes.gone(tx, sandbox.id, log=last_words)


async def _ended_without_a_word(site: Site, sandbox: Sandbox, machine: Machine) -> None:
    last = (await _last_words(site, sandbox, 1)).strip()[:LAST_LINE_CHARS]
    code, message = _cause(machine)
    await _end(site, sandbox, code, f"{message} {last}".strip())


async def _last_words(site: Site, sandbox: Sandbox, lines: int) -> str:
    """What its worker wrote, without what is secret and what no row can hold. No log is worth keeping a machine for."""
    try:
        text = await site.provider.log(sandbox.name, lines)
    except ProviderError as error:
        log.warning("log_not_read", sandbox=sandbox.name, error=error.message)
        return f"Its log could not be read: {error.message}"
    async with site.db.reading() as session:
        mask = await site.masks.of(session, sandbox.id)
    return mask.text(events.storable_text(text))


async def _end_without_machine(site: Site, sandbox: Sandbox) -> None:
    if sandbox.provider_id is not None:
        await _end(site, sandbox, FailureCode.SANDBOX_LOST, "Its machine is gone.")
    elif sandbox.desired is DesiredState.STOP:
        await _end(site, sandbox, FailureCode.CANCELLED, "It was stopped before it had a machine.")


async def _end(site: Site, sandbox: Sandbox, code: FailureCode, message: str) -> None:
    log.warning("sandbox_ended", sandbox=sandbox.name, code=code.name, message=message)
    async with site.change("watch") as tx:
        await attempts.lose(tx, sandbox.id, code, message)


def _cause(machine: Machine) -> tuple[FailureCode, str]:
    if machine.out_of_memory:
        return FailureCode.OUT_OF_MEMORY, "The sandbox ran out of memory."
    if machine.exit_code == KILLED:
        return FailureCode.KILLED, f"The worker was killed. {machine.detail}".strip()
    detail = machine.detail or f"exit code {machine.exit_code}"
    return FailureCode.SANDBOX_LOST, f"The worker ended without a report ({detail})."
