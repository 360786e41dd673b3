"""The spool and its delivery: nothing is lost, doubled or out of order, whatever happens to either side."""

import asyncio
import contextlib
import hashlib
import json

import httpx
import pytest

from tests.servers import until
from tests.worker import plane
from worker.delivery import Delivery
from worker.inbox import Inbox
from worker.server import Over, Server
from worker.spool import LARGEST_TEXT_BYTES, Spool


@pytest.fixture
async def server():
    async with plane.serving() as made:
        yield made


@contextlib.asynccontextmanager
async def delivering(spool, server, *, heartbeat_seconds=30.0):
    async with httpx.AsyncClient() as http:
        speaker = Server(server.url, plane.TOKEN, http)
        delivery = Delivery(spool, speaker, Inbox().hear, heartbeat_seconds=heartbeat_seconds)
        task = asyncio.create_task(delivery.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


def fill(spool, count, *, text="hello", kind="MESSAGE"):
    for _ in range(count):
        spool.append(kind, {"text": text})


def numbers(spool):
    return [entry["event"]["producerSeq"] for entry in spool.read(count=10_000, size_bytes=1 << 30)]


def test_numbers_go_on_after_a_crash(tmp_path):
    """A line that a crash cut short is forgotten, and the next event takes its number."""
    spool = Spool(tmp_path)
    fill(spool, 3)
    segment = next(tmp_path.glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes()[:-5])
    again = Spool(tmp_path)
    assert again.last == 2
    fill(again, 1, text="other")
    assert numbers(again) == [1, 2, 3]
    assert again.read(count=9, size_bytes=1 << 20)[2]["event"]["payload"] == {"text": "other"}


def test_segments_are_dropped(tmp_path):
    """What is accepted leaves the disk; numbers go on from what stays, also in a new process."""
    spool = Spool(tmp_path)
    fill(spool, 60, text="x" * 60_000)
    assert len(list(tmp_path.glob("*.jsonl"))) > 2
    spool.accept(59)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    again = Spool(tmp_path)
    assert again.last == 60
    fill(again, 1)
    assert numbers(again)[-2:] == [60, 61]


def test_bound(tmp_path):
    """A full spool keeps what must be kept, and only that."""
    spool = Spool(tmp_path, limit_bytes=1000)
    fill(spool, 10, text="x" * 200)
    fill(spool, 5, kind="THINKING")
    fill(spool, 5, kind="LOG")
    assert spool.last == 10
    fill(spool, 1)
    assert spool.last == 11


def test_the_report_is_last(tmp_path):
    """After the report nothing is told, and a new process finds it."""
    spool = Spool(tmp_path)
    spool.finish({"success": True})
    fill(spool, 1)
    assert Spool(tmp_path).report == {"success": True}
    assert spool.last == 0


def test_what_no_database_holds(tmp_path):
    """NUL and halves of surrogate pairs are replaced before anything is stored."""
    spool = Spool(tmp_path)
    spool.append("LOG", {"text": "a\0b\ud800c"})
    [entry] = spool.read(count=1, size_bytes=1)
    assert entry["event"]["payload"] == {"text": "a\N{REPLACEMENT CHARACTER}b?c"}


async def test_long_texts_go_ahead(tmp_path, server):
    """A long text arrives whole as a blob before the event that names it, and then leaves the disk."""
    spool = Spool(tmp_path)
    text = "word " * LARGEST_TEXT_BYTES
    spool.append("TOOL_COMPLETED", {"output": text})
    spool.append("FILE_EDITED", {"diff": text})
    async with delivering(spool, server):
        await until(lambda: len(server.events) == 2)
        await until(lambda: not list((tmp_path / "blobs").iterdir()))
    name = hashlib.sha256(text.encode()).hexdigest()
    assert server.of("FILE_EDITED") == [{"diff": {"blob": name}}]
    assert server.of("TOOL_COMPLETED")[0]["output"]["preview"] == text[:2000]
    assert server.blobs[name].decode() == text


async def test_blob_is_found_after_a_crash(tmp_path, server):
    """A new process sends the blobs of the events that the old one had not delivered."""
    Spool(tmp_path).append("FILE_EDITED", {"diff": "x" * 100_000})
    async with delivering(Spool(tmp_path), server):
        await until(lambda: server.events)
    assert len(server.blobs) == 1
    assert not list((tmp_path / "blobs").iterdir())


async def test_hole(tmp_path, server):
    """A server that has less than was sent gets the rest again from there."""
    spool = Spool(tmp_path)
    fill(spool, 20)
    server.forgets_once = 5
    async with delivering(spool, server):
        await until(lambda: len(server.events) == 20)
    assert [event["producerSeq"] for event in server.events] == list(range(1, 21))


async def test_cut(tmp_path, server):
    """Events and the report that were written while the server was away arrive when it is back, the report last."""
    spool = Spool(tmp_path)
    server.away = True
    async with delivering(spool, server) as task:
        fill(spool, 300)
        spool.finish({"success": True, "summary": ""})
        await until(lambda: not task.done())
        server.away = False
        await asyncio.wait_for(task, 20)
    assert len(server.events) == 300
    assert server.finished == [{"success": True, "summary": ""}]


async def test_refused_event_holds_up_nothing(tmp_path, server):
    """An event that is never taken is stood in for by a line that says so; all others arrive."""
    spool = Spool(tmp_path)
    server.refused_types = {"THINKING"}
    fill(spool, 3)
    fill(spool, 1, kind="THINKING")
    fill(spool, 3)
    async with delivering(spool, server):
        await until(lambda: len(server.events) == 7)
    assert server.types() == ["MESSAGE"] * 3 + ["LOG"] + ["MESSAGE"] * 3


async def test_attempt_that_is_over(tmp_path, server):
    """The end of the attempt ends the delivery."""
    server.over = True
    spool = Spool(tmp_path)
    fill(spool, 1)
    async with delivering(spool, server) as task:
        with pytest.raises(Over):
            await asyncio.wait_for(task, 20)


def test_each_message_once():
    """A message that comes by both ways is shown once, in the order of its first coming."""
    inbox = Inbox()
    first, second = ({"id": name, "kind": "USER"} for name in "ab")
    inbox.hear({"messages": [first]})
    inbox.hear({"pendingMessages": [first, second], "desiredState": "STOP"})
    assert [inbox.next(), inbox.next(), inbox.next()] == [first, second, None]
    assert inbox.stop.is_set()


def test_lines_are_json(tmp_path):
    """Each line of a segment is one event with what the server wants to know of it."""
    spool = Spool(tmp_path)
    spool.append("LOG", {"text": "a\nb"}, source="WORKER", turn=3)
    [line] = next(tmp_path.glob("*.jsonl")).read_bytes().splitlines()
    assert set(json.loads(line)["event"]) == plane.EVENT_KEYS
