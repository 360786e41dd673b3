"""The sandboxes of a load, made as users make them, and the comparison of what was told, stored and acknowledged."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from app import ids
from app.db import Database
from app.models import Event, Stream
from app.secrets import Keys
from tests.servers import Up

OWN = 2  # events of the server itself in each of these sandboxes: PROVISIONING and RUNNING
MUTATION = "mutation($input: {kind}Input!) {{ {name}(input: $input) {{ {fields} errors {{ message }} }} }}"


@dataclass
class Scene:
    """Sandboxes that no machine stands behind: the token of each one's worker, and one that may read them all."""

    workers: dict[str, str]
    reader: str

    @property
    def sandboxes(self) -> list[str]:
        return list(self.workers)


async def scene(server: Up, keys: Keys, sandboxes: int) -> Scene:
    project = await _made(server, "createProject", "project { id }", name="Apollo", settings={"concurrency": sandboxes})
    workers = {}
    for number in range(sandboxes):
        given = {"projectId": project["id"], "title": f"Stage {number}", "startTask": False}
        ticket = await _made(server, "createTicket", "ticket { id }", **given)
        task = await _made(server, "createTask", "task { id }", ticketId=ticket["id"], title="Build it")
        sandbox = (await _made(server, "spawnSandbox", "sandbox { id }", taskId=task["id"]))["id"]
        workers[sandbox] = keys.sandbox_token(ids.decode(sandbox)[1], 1)
    return Scene(workers, await _made(server, "createAccessToken", "token", name="reader"))


async def _made(server: Up, mutation: str, fields: str, **given: object):
    document = MUTATION.format(kind=mutation[0].upper() + mutation[1:], name=mutation, fields=fields)
    answer = await server.ask(document, input=given)
    payload = answer["data"][mutation]
    assert payload.pop("errors") == []
    [made] = payload.values()
    return made


@dataclass
class Stored:
    """A sandbox's stream as its rows and its digest tell it."""

    seqs: list[int]
    numbers: list[int]  # of the worker's own
    chain: str  # computed from the rows
    digest: str
    last_seq: int


async def stored(url: str, sandbox_id: str) -> Stored:
    db = Database(url, connections=1)
    async with db.reading() as session:
        key = ids.decode(sandbox_id)[1]
        stream = await session.get_one(Stream, key)
        found = await session.execute(
            select(Event.seq, Event.id, Event.producer_seq).where(Event.stream_id == key).order_by(Event.seq)
        )
        rows = found.all()
    await db.close()
    chain = bytes(32)
    for row in rows:
        chain = hashlib.sha256(chain + ids.encode("event", row.id).encode()).digest()
    numbers = [row.producer_seq for row in rows if row.producer_seq is not None]
    return Stored([row.seq for row in rows], numbers, chain.hex(), stream.digest.hex(), stream.last_seq)


def acknowledged(ledger: Path) -> dict[str, int]:
    """By the ledger: how far each sandbox was acknowledged. It never went back."""
    known: dict[str, int] = {}
    for line in ledger.read_text().splitlines():
        sandbox, through = line.split()
        assert int(through) > known.get(sandbox, 0), line
        known[sandbox] = int(through)
    return known


def assert_everything_was_told(accounts: list[dict], through: dict[str, int]) -> None:
    """To each subscriber every acknowledged event of its sandbox, once, in order, without a hole or a reset."""
    assert [one["wrong"] for one in accounts if one["wrong"]] == []
    for one in accounts:
        assert (one["logs"], one["seq"]) == (through[one["sandbox"]], through[one["sandbox"]] + OWN)


async def assert_everything_is_stored(url: str, accounts: list[dict], through: dict[str, int]) -> None:
    """Rows, digest, ledger and what each subscriber computed for itself tell the same."""
    for sandbox, last in through.items():
        found = await stored(url, sandbox)
        assert found.numbers == list(range(1, last + 1))
        assert found.seqs == list(range(1, last + OWN + 1))
        assert (found.last_seq, found.digest) == (last + OWN, found.chain)
        assert {one["digest"] for one in accounts if one["sandbox"] == sandbox} == {found.digest}
