"""Answers to a worker: what it reports, what it should hear, and how it ends. It acts on its own sandbox alone."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from app import attempts, events, git, ids, messages
from app.enums import DesiredState
from app.errors import SandboxNotRunning
from app.models import Sandbox
from app.sandboxes import by_ids
from app.transactions import Transaction
from resolvers.context import Context, Services

Given = dict[str, Any]


async def report(tx: Transaction, given: Given, *, services: Services) -> Given:
    sandbox_id, batch = tx.principal.id, events.read(given["events"])
    services.quotas.admit(sandbox_id, events=len(batch.events), size_bytes=batch.size_bytes)
    mask = await services.masks.of(tx.session, sandbox_id)
    beats = given.get("heartbeat") is not False
    most = services.settings.sandbox_stream_bytes
    reported = await events.report(tx, sandbox_id, batch, heartbeat=beats, mask=mask, most_bytes=most)
    return {
        "accepted": reported.accepted_through,
        "desired": reported.desired,
        "pending_messages": await messages.pending(tx, sandbox_id) if reported.spoken_to else [],
        "errors": reported.errors,
    }


async def acknowledge(tx: Transaction, given: Given) -> Given:
    """Ids of nothing, or of somebody else's messages, are passed over like those that were said before."""
    decoded = [ids.decode(one) for one in given["message_ids"]]
    mine = [key for prefix, key in filter(None, decoded) if prefix == "message"]
    await messages.acknowledge(tx, tx.principal.id, mine, given.get("delivered_in_turn"))
    return {}


async def finish(tx: Transaction, given: Given, *, services: Services) -> Given:
    mask = await services.masks.of(tx.session, tx.principal.id)
    said = {"summary": given["summary"], "output": given.get("output"), "checks": _checks(given)}
    for name in ("branch", "commit", "session_id", "transcript_blob"):
        said[name] = given.get(name)
    told = {**given, **mask.value(events.storable(said))}
    finished = await attempts.finish(tx, tx.principal.id, told)
    return {"desired": finished.desired}


async def issue_git_credential(tx: Transaction, given: Given, *, services: Services) -> Given:
    found = await by_ids(tx.session, [tx.principal.id])
    if not found:
        raise SandboxNotRunning("There is no such sandbox.")
    issued = await git.credential(tx.session, services.keys, services.settings, found[0], given["operation"])
    if issued is None:
        return {}
    return {"username": issued.username, "password": issued.password, "expires_at": issued.expires_at}


async def inbox(context: Context, root: Any) -> AsyncGenerator[messages.Inbox]:
    services = context.services
    found = messages.inbox(
        services.db,
        services.bus,
        context.principal,
        request_id=context.request_id,
        poll_seconds=services.settings.stream_poll_seconds,
    )
    async with aclosing(found) as looks:
        async for look in looks:
            yield look


async def desired_state(context: Context, payload: Any) -> DesiredState:
    return payload.desired or (await _own(context)).desired


async def accepted_through(context: Context, payload: Any) -> int:
    return payload.accepted if payload.accepted is not None else (await _own(context)).accepted_through


async def _own(context: Context) -> Sandbox:
    sandbox: Sandbox = await context.loaders.sandboxes.load(context.principal.id)
    return sandbox


def _checks(given: Given) -> list[dict[str, Any]]:
    return [
        {
            "command": check["command"],
            "passed": check["passed"],
            "output": check["output"],
            "durationMs": check["duration_ms"],
        }
        for check in given.get("checks") or ()
    ]
