"""The one way of a change: open a transaction, authorise, check the text, do it once, and tell refusals as data."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app import auth, idempotency, ids, inputs, messages, projects, sandboxes, tasks, tickets, transactions, users
from app.auth import Rule
from app.errors import DomainError, NotFound, Several
from app.transactions import Transaction
from resolvers.context import Context

Given = dict[str, Any]
Act = Callable[..., Awaitable[Any]]

READERS: Mapping[str, Any] = {
    "project": projects.by_ids,
    "ticket": tickets.by_ids,
    "task": tasks.by_ids,
    "sandbox": sandboxes.by_ids,
    "message": messages.by_ids,
    "user": users.by_ids,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    name: str
    act: Act
    rule: Rule
    answers: str  # the payload's field that holds the object
    raw: bool = False  # its text need not be storable as it is
    served: bool = False  # `act` is also given the parts of the server


async def run(context: Context, mutation: Mutation, given: Given) -> Given:
    """The payload: the object, or what a person can mend. Nothing is stored unless everything is."""
    key = given.pop("idempotency_key", None)
    try:
        services = context.services
        if mutation.served:
            mutation = replace(mutation, act=partial(mutation.act, services=services))
        async with transactions.begin(
            services.db, services.bus, context.principal, request_id=context.request_id
        ) as tx:
            await auth.authorise(tx.session, context.principal, mutation.rule, given.get(mutation.rule.of or ""))
            if not mutation.raw:
                inputs.require_storable(given)
            made = await _once(tx, mutation, key, given)
    except Several as refusals:
        return {"errors": refusals.errors}
    except DomainError as refusal:
        return {"errors": [refusal]}
    context.forget()
    return {"errors": [], **made}


async def _once(tx: Transaction, mutation: Mutation, key: str | None, given: Given) -> Given:
    if key is None:
        return await _do(tx, mutation, given)
    earlier = await idempotency.claim(tx, mutation.name, key, given)
    if earlier is not None:
        if await auth.role_for(tx.session, tx.principal, ids.encode(mutation.answers, earlier)) is None:
            raise NotFound  # it was theirs once
        [row] = await READERS[mutation.answers](tx.session, [earlier])
        return {mutation.answers: row}
    made = await _do(tx, mutation, given)
    await idempotency.settle(tx, mutation.name, key, made[mutation.answers].id)
    return made


async def _do(tx: Transaction, mutation: Mutation, given: Given) -> Given:
    made = await mutation.act(tx, given)
    return made if isinstance(made, dict) else {mutation.answers: made}
