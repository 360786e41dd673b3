"""Blobs: what a worker lays down is kept whole under its hash, masked, and nobody else's."""

import asyncio
import contextlib
import gzip
import hashlib
import os
import zlib

import httpx
import pytest
from sqlalchemy import text
from starlette.applications import Starlette

from app import blobs
from app.edge import Edge, Metrics
from app.errors import LimitReached
from app.masking import MARK
from app.settings import Settings
from app.worker_door import WorkerDoor
from tests.app.claimed import box
from tests.servers import until

DATA = "Ein Protokoll, größer als ein Ereignis.\n".encode() * 1000


@pytest.fixture
def settings(tmp_path):
    """No orchestrator, which would take the tasks."""
    return Settings(data=tmp_path, orchestrator_enabled=False, anthropic_api_key="sk-ant-of-the-server")


@pytest.fixture
async def mine(ada, apollo):
    return await box(ada, apollo)


def named(data):
    return hashlib.sha256(data).hexdigest()


async def put(mine, data, *, name=None, packed=True, **headers):
    """The answer to an upload; a packed one says so."""
    packing = {"content-encoding": "gzip"} if packed else {}
    body = gzip.compress(data) if packed is True else data
    headers = {**mine.bearer, **packing, **{key.replace("_", "-"): value for key, value in headers.items()}}
    return await mine.world.http.put(f"/blobs/{name or named(data)}", content=body, headers=headers)


async def stored(mine, data, name=None):
    async with mine.world.server.db.reading() as session:
        return await blobs.read(session, mine.sandbox.id, bytes.fromhex(name or named(data)))


async def rows(world):
    async with world.server.db.reading() as session:
        return await session.scalar(text("SELECT count(*) FROM blobs"))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("data", [DATA, b"", os.urandom(3 << 20)], ids=["text", "empty", "noise"])
async def test_blob_comes_back_as_it_was(mine, data, packed):
    """New ones answer 201, the same again 200; it is stored packed, with the size that the worker knows."""
    assert [(await put(mine, data, packed=packed)).status_code for _ in range(2)] == [201, 200]
    assert await stored(mine, data) == data
    async with mine.world.server.db.reading() as session:
        [(size, length)] = await session.execute(text("SELECT size_bytes, length(content) FROM blobs"))
    assert size == len(data)
    assert length < max(len(data) // 10, 100) or len(data) == 3 << 20


async def test_several_are_read_at_once(mine, statements):
    """Those that are there, in two statements: their sizes are asked first."""
    parts = [b"one", b"two"]
    for part in parts:
        await put(mine, part)
    hashes = [hashlib.sha256(part).digest() for part in (*parts, b"three")]
    with statements() as made:
        async with mine.world.server.db.reading() as session:
            found = await blobs.read_many(session, mine.sandbox.id, hashes)
    assert found == dict(zip(hashes, parts, strict=False))
    assert len(made) == 2


async def test_what_is_read_at_once_has_a_limit(monkeypatch, mine):
    """Before anything is unpacked it is known how much that will be, and too much is refused with a sentence."""
    parts = [os.urandom(1000) for _ in range(3)]
    for part in parts:
        await put(mine, part)
    hashes = [hashlib.sha256(part).digest() for part in parts]
    monkeypatch.setattr("app.blobs.LARGEST_BYTES", 2500)
    async with mine.world.server.db.reading() as session:
        assert len(await blobs.read_many(session, mine.sandbox.id, hashes[:2])) == 2
        with pytest.raises(LimitReached, match="at once"):
            await blobs.read_many(session, mine.sandbox.id, hashes)


async def test_secrets_are_taken_out_before_it_is_kept(mine):
    """Its own token and the server's key, in what is stored under the hash of what was sent."""
    data = f"{mine.token} and sk-ant-of-the-server\n".encode() + DATA
    assert (await put(mine, data)).status_code == 201
    assert await stored(mine, data) == f"{MARK} and {MARK}\n".encode() + DATA


async def test_blob_belongs_to_its_sandbox(mine, ada, apollo):
    """Another sandbox does not have it, and lays down its own."""
    await put(mine, DATA)
    other = await box(ada, apollo)
    assert await stored(other, DATA) is None
    assert (await put(other, DATA)).status_code == 201


async def test_only_workers_come_in(world, mine, ada):
    """People are forbidden; the unknown, and a worker whose attempt is over, are not let in."""
    for token, status, code in (
        (ada.token, 403, "FORBIDDEN"),
        ("omoi_sbx_x", 401, "UNAUTHENTICATED"),
        ("x", 401, "UNAUTHENTICATED"),
    ):
        answer = await put(mine, DATA, authorization=f"Bearer {token}")
        [error] = answer.json()["errors"]
        assert (answer.status_code, error["extensions"]["code"]) == (status, code)
        assert error["extensions"]["requestId"] == answer.headers["x-request-id"]
    await mine.finish()
    assert (await put(mine, DATA)).status_code == 401
    assert (await world.http.get(f"/blobs/{named(DATA)}", headers=mine.bearer)).status_code == 405
    assert await rows(world) == 0


BROKEN = {
    "other-bytes": (DATA + b"x", True, 400),
    "no-gzip": (DATA, "as it is", 400),
    "cut-short": (gzip.compress(DATA)[:-9], "as it is", 400),
    "something-after": (gzip.compress(DATA) + b"x", "as it is", 400),
    "two-members": (gzip.compress(DATA[:100]) + gzip.compress(DATA[100:]), "as it is", 400),
    "zlib": (zlib.compress(DATA), "as it is", 400),
    "nothing": (b"", "as it is", 400),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_is_not_what_the_hash_says(world, mine, case):
    """Other bytes, and what is no whole gzip, are refused and not kept."""
    body, packed, status = BROKEN[case]
    answer = await put(mine, body, name=named(DATA), packed=packed)
    assert (answer.status_code, answer.json()["errors"][0]["extensions"]["code"]) == (status, "BAD_USER_INPUT")
    assert await rows(world) == 0


@pytest.mark.parametrize("name", ["x", named(DATA)[:-1], named(DATA).upper(), named(DATA) + "0", "é" * 64])
async def test_what_is_no_hash(mine, name):
    """A blob is named by 64 digits in lower case."""
    assert (await put(mine, DATA, name=name)).status_code == 400


async def test_other_encodings_are_refused(mine):
    assert (await put(mine, DATA, content_encoding="br")).status_code == 415


async def test_bombs_stop_while_they_unpack(mine):
    """What would unpack to more than 64 MiB is refused, be it sent in 300 kB."""
    packer = zlib.compressobj(9, wbits=blobs.GZIP)
    part = bytes(1 << 20)
    body = b"".join([*(packer.compress(part) for _ in range(256)), packer.flush()])
    answer = await put(mine, body, name=named(b""), packed="as it is")
    assert (len(body) < 1 << 20, answer.status_code) == (True, 413)
    assert "64 MiB" in answer.json()["errors"][0]["message"]


@contextlib.asynccontextmanager
async def asking(world, mine):
    """The door alone, in this very process: it takes of a body what it wants, and one sees how much."""
    door = WorkerDoor(world.server.db, world.server.masks, world.server.gate.authenticate)
    app = Edge(Starlette(routes=door.routes()), metrics=Metrics(), access_log=False, https=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=world.url, headers=mine.bearer) as http:
        yield door, http


@pytest.mark.parametrize(("length", "most"), [({}, 65), ({"content-length": str((64 << 20) + 1)}, 0)])
async def test_large_bodies_stop_while_they_arrive(world, mine, length, most):
    """No more than 64 MiB are taken, and nothing at all of a body that says that it is larger."""
    taken = 0

    async def endless():
        nonlocal taken
        while taken < 100:
            taken += 1
            yield bytes(1 << 20)

    async with asking(world, mine) as (_, http):
        answer = await http.put(f"/blobs/{named(b'')}", content=endless(), headers=length)
    assert (answer.status_code, taken) == (413, most)


async def test_silent_bodies_end(monkeypatch, world, mine):
    """A body of which nothing comes any more does not keep its place."""
    monkeypatch.setattr("app.worker_door.SILENCE_SECONDS", 0.05)
    head = f"PUT /blobs/{named(b'')} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nauthorization: Bearer {mine.token}"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    writer.write(f"{head}\r\n\r\nx".encode())
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()


async def test_sandbox_has_a_quota(monkeypatch, mine, ada, apollo):
    """What is over it is refused with a sentence, what is there already is fine, and others have their own."""
    noise = [os.urandom(1000) for _ in range(3)]
    monkeypatch.setattr("app.blobs.QUOTA_BYTES", 2500)
    assert [(await put(mine, data)).status_code for data in noise] == [201, 201, 413]
    assert "blobs at most" in (await put(mine, noise[2])).json()["errors"][0]["message"]
    assert (await put(mine, noise[0])).status_code == 200
    assert (await put(await box(ada, apollo), noise[2])).status_code == 201


async def test_sandbox_sends_two_at_once(world, mine):
    """A third upload is told to come back, and there is room again when one has ended, however it ended."""
    goes_on = asyncio.Event()

    async def slow(data):
        yield data[:1]
        await goes_on.wait()
        yield data[1:]

    async with asking(world, mine) as (door, http):
        names = [f"/blobs/{named(data)}" for data in (b"one", b"two", b"three")]
        sent = [asyncio.create_task(http.put(names[0], content=slow(data))) for data in (b"one", b"not one")]
        await until(lambda: door._uploads.total() == 2)
        third = await http.put(names[2], content=b"three")
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        goes_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*sent)] == [201, 400]
        assert (await http.put(names[2], content=b"three")).status_code == 201
        assert not door._uploads
