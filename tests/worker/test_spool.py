"""The spool and its delivery: nothing is lost, doubled or out of order, whatever happens to either side."""

import asyncio
import contextlib
import hashlib
import subprocess
import sys

import httpx
import pytest

from tests.servers import until
from tests.worker import plane
from worker.delivery import Delivery, Inbox
from worker.server import Over, Server
from worker.spool import LARGEST_TEXT_BYTES, Spool


@contextlib.asynccontextmanager
async def delivering(spool, server):
    async with httpx.AsyncClient() as http:
        speaker = Server(server.url, plane.TOKEN, http)
        delivery = Delivery(spool, speaker, Inbox())
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
    return [event["producerSeq"] for event in spool.read(count=10_000, size_bytes=1 << 30)]


def test_numbers_go_on_after_a_crash(tmp_path):
    """What was appended outlives a process that is killed, and the next event takes the next number."""
    script = "import os, sys, pathlib, worker.spool\nspool = worker.spool.Spool(pathlib.Path(sys.argv[1]))\n"
    script += "for n in range(3): spool.append('MESSAGE', {'text': 'hello'})\nos.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", script, tmp_path], check=False).returncode == -9
    again = Spool(tmp_path)
    assert again.last == 3
    fill(again, 1, text="other")
    assert numbers(again) == [1, 2, 3, 4]
    assert again.read(count=9, size_bytes=1 << 20)[3]["payload"] == {"text": "other"}


def test_what_is_accepted_is_dropped(tmp_path):
    """What is accepted leaves the spool; numbers go on all the same, also in a new process."""
    spool = Spool(tmp_path)
    fill(spool, 60)
    spool.accept(59)
    assert numbers(spool) == [60]
    spool.accept(60)
    again = Spool(tmp_path)
    assert again.last == 60
    fill(again, 1)
    assert numbers(again) == [61]


def test_bound(tmp_path):
    """A full spool keeps what must be kept, and only that; there is room again when the server has taken it."""
    spool = Spool(tmp_path, limit_bytes=100_000)
    fill(spool, 1, kind="LOG")
    fill(spool, 10, text="x" * 20_000)
    fill(spool, 5, kind="THINKING")
    fill(spool, 5, kind="LOG")
    assert spool.last == 11
    fill(spool, 1)
    assert spool.last == 12
    spool.accept(12)
    fill(spool, 1, kind="LOG")
    assert spool.last == 13


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
    [event] = spool.read(count=1, size_bytes=1)
    assert event["payload"] == {"text": "a\N{REPLACEMENT CHARACTER}b?c"}


def test_endless_numbers(tmp_path):
    """What JSON has no number for is told in words."""
    spool = Spool(tmp_path)
    spool.finish({"output": {"a": float("nan"), "b": [float("inf"), 1.5]}})
    assert spool.report == {"output": {"a": "nan", "b": ["inf", 1.5]}}


async def test_long_texts_go_ahead(tmp_path, server):
    """A long text arrives whole as a blob before the event that names it, and then leaves the disk."""
    spool = Spool(tmp_path)
    text = "word " * LARGEST_TEXT_BYTES
    spool.append("TOOL_COMPLETED", {"output": text})
    spool.append("FILE_EDITED", {"diff": text})
    async with delivering(spool, server):
        await until(lambda: len(server.events) == 2)
        await until(lambda: not spool.read(count=1, size_bytes=1))
    assert spool.blob() is None
    name = hashlib.sha256(text.encode()).hexdigest()
    assert server.of("FILE_EDITED") == [{"diff": {"blob": name}}]
    assert server.of("TOOL_COMPLETED") == [{"output": {"blob": name}}]
    assert server.blobs[name].decode() == text


async def test_blob_is_found_after_a_crash(tmp_path, server):
    """A new process sends the blobs of the events that the old one had not delivered."""
    Spool(tmp_path).append("FILE_EDITED", {"diff": "x" * 100_000})
    again = Spool(tmp_path)
    async with delivering(again, server):
        await until(lambda: server.events)
    assert len(server.blobs) == 1
    assert again.blob() is None


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


@pytest.mark.parametrize("how", ["refused_types", "malformed_types"])
async def test_refused_event(tmp_path, server, how):
    """One that is never taken is left out: a line under its number says what and why, and all the others arrive."""
    spool = Spool(tmp_path)
    getattr(server, how).add("THINKING")
    for kind in ("MESSAGE", "THINKING", "MESSAGE", "THINKING"):
        fill(spool, 3, kind=kind)
    spool.finish({"success": True})
    async with delivering(spool, server) as task:
        await asyncio.wait_for(task, 20)
    assert [event["producerSeq"] for event in server.events] == list(range(1, 13))
    assert server.types() == (["MESSAGE"] * 3 + ["LOG"] * 3) * 2
    assert all(told["leftOut"] == "THINKING" and "THINKING was left out: " in told["text"] for told in server.of("LOG"))
    assert len(server.finished) == 1


@pytest.mark.parametrize("field", ["output", "checks"])
async def test_refused_report(tmp_path, server, field):
    """What others have said does not take the work with it: the report is told without it, and says why."""
    spool = Spool(tmp_path)
    server.malformed_fields = {field}
    checks = [{"command": "true", "passed": True, "output": "", "durationMs": 1}]
    spool.finish({"success": True, "summary": "It flies.", "commit": "c0ffee", "output": [1], "checks": checks})
    async with delivering(spool, server) as task:
        await asyncio.wait_for(task, 20)
    [report] = server.finished
    assert (report["success"], report["commit"], report["output"], report["checks"]) == (True, "c0ffee", None, [])
    assert report["summary"].startswith("It flies.\n\n")
    assert "The payload is too deep." in report["summary"]


async def test_report_that_is_never_taken(tmp_path, server):
    """When the report without its contents is refused too, the attempt is over."""
    spool = Spool(tmp_path)
    server.malformed_fields = {"success"}
    spool.finish({"success": True, "summary": ""})
    async with delivering(spool, server) as task:
        with pytest.raises(Over, match="too deep"):
            await asyncio.wait_for(task, 20)
    assert server.finished == []


async def test_server_that_takes_nothing(tmp_path, server):
    """When not even the line in its place is taken, the attempt is over."""
    spool = Spool(tmp_path)
    server.refused_types = {"THINKING", "LOG"}
    fill(spool, 1, kind="THINKING")
    async with delivering(spool, server) as task:
        with pytest.raises(Over, match="nothing was accepted"):
            await asyncio.wait_for(task, 20)


async def test_refused_blob(tmp_path, server):
    """A text for which there is no room leaves its beginning, wherever it stands, its size, and what was said."""
    spool = Spool(tmp_path)
    server.full = True
    text = "word " * LARGEST_TEXT_BYTES
    spool.append("TOOL_USE", {"tool": "Write", "input": {"content": text}})
    spool.append("TOOL_COMPLETED", {"output": "short", "sizeBytes": 5})
    spool.finish({"success": True, "transcriptBlob": spool.put_blob(b"transcript")})
    async with delivering(spool, server) as task:
        await asyncio.wait_for(task, 20)
    [used] = server.of("TOOL_USE")
    assert text.startswith(used["input"]["content"])
    assert (used["truncated"], used["sizeBytes"], used["reason"][:9]) == (True, len(text), "A sandbox")
    assert server.of("TOOL_COMPLETED") == [{"output": "short", "sizeBytes": 5}]
    assert server.finished == [{"success": True, "transcriptBlob": None}]


@pytest.mark.parametrize("door", ["graphql", "blobs"])
async def test_asked_too_often(tmp_path, server, door):
    """A server that wants to be left alone for a while is, and loses nothing by it."""
    spool = Spool(tmp_path)
    server.busy = {door: 0}
    fill(spool, 2, text="x" * 100_000)
    spool.finish({"success": True})
    async with delivering(spool, server) as task:
        await asyncio.wait_for(task, 20)
    assert server.busy[door] > 0
    assert server.asked_too_soon == 0
    assert len(server.events) == 2


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
    assert list(inbox.waiting) == [first, second]
    assert inbox.stop.is_set()


def test_events_are_whole(tmp_path):
    """Each event has what the server wants to know of it."""
    spool = Spool(tmp_path)
    spool.append("LOG", {"text": "a\nb"}, source="WORKER", turn=3)
    [event] = spool.read(count=1, size_bytes=1)
    assert set(event) == plane.EVENT_KEYS
