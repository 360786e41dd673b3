"""Postgres goes away under a running server: everybody is told so in a sentence, and it works again by itself."""

import asyncio
import contextlib
import json
import os
import signal

import pytest

from app import upgrade
from app.postgres import EmbeddedPostgres
from app.settings import Settings
from tests.servers import postgres_of, short_folder, until, up
from tests.world import World, project, ticket

FEED = "subscription($id: ID!) { projectActivity(projectId: $id) { activities { seq } } }"
AWAY = "The database cannot be reached right now. Try again in a moment."


@pytest.fixture
def folder():
    with short_folder() as one:
        yield one


async def read_until(events, seq):
    seen = []
    while not seen or seen[-1] < seq:
        seen += [activity["seq"] for activity in (await events.next())["activities"]]
    return seen


@contextlib.asynccontextmanager
async def external(folder):
    """A Postgres of the operator's, migrated, which the test may stop and start."""
    postgres = EmbeddedPostgres(folder, holder="a test")
    await postgres.start()
    try:
        await upgrade.migrate(postgres.url)
        yield postgres
    finally:
        await postgres.stop()


async def test_external_postgres_goes_and_comes_back(folder):
    """Meanwhile requests get one sentence and the probes say what is wrong; streams go on afterwards without a gap."""
    async with external(folder / "pg") as postgres:
        settings = Settings(data=folder, orchestrator_enabled=False, stream_poll_seconds=0.2)
        async with World(settings, postgres.url).running() as world:
            ada = await world.account("ada")
            apollo = await project(ada)
            async with ada.following(FEED, id=apollo) as events:
                assert await read_until(events, 1) == [1]
                await postgres.stop()
                for document in ("{ projects { nodes { id } } }", "{ health { loops { name } } }"):
                    [error] = (await ada(document)).errors
                    assert error["message"] == AWAY
                ready = await world.http.get("/readyz")
                assert (ready.status_code, ready.json()["problem"]) == (503, AWAY)
                assert (await world.http.get("/livez")).status_code == 200
                assert (await world.http.get("/metrics")).status_code == 200
                left = await world.http.get("/sign-in", params={"token": "omoi_link_x"})
                assert (left.status_code, left.text) == (503, AWAY)
                await postgres.start()
                await until(lambda: is_ready(world))
                await ticket(ada, apollo)
                await ticket(ada, apollo)
                assert await read_until(events, 3) == [2, 3]


async def is_ready(world):
    return (await world.http.get("/readyz")).status_code == 200


async def test_embedded_postgres_is_brought_back(data):
    """Its main process killed with -9: the server lives, brings it back, and an open stream misses nothing."""
    async with up(data, OMOI_STREAM_POLL_SECONDS=0.2, OMOI_PRODUCTION="true") as server:
        await server.sign_in()
        made = await server.ask('mutation { createProject(input: {name: "A"}) { project { id } } }')
        apollo = made["data"]["createProject"]["project"]["id"]
        make = f'createTicket(input: {{projectId: "{apollo}", title: "T", startTask: false}}) {{ ticket {{ id }} }}'
        async with watching(server, apollo) as seen:
            await until(lambda: 1 in seen())
            for _ in range(2):
                await kill_and_wait(server, data, make)
            await until(lambda: len(seen()) > server.made)
            # An answer may be lost after the commit, so there may be more than were confirmed, but no gap.
            assert seen() == list(range(1, len(seen()) + 1))
        assert {json.loads(line)["event"] for line in server.log.read_text().splitlines()} >= {"postgres_restarted"}
        assert "Traceback" not in server.log.read_text()
    assert not postgres_of(data)


def main_process(data):
    """The process that Postgres has now; None while there is none."""
    try:
        return int((data / "postgres/postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return None


async def kill_and_wait(server, data, make):
    """Until a new process has made a ticket; before that the answer may be that one sentence, and nothing else."""
    victim = main_process(data)
    os.kill(victim, signal.SIGKILL)

    async def works_again():
        process = main_process(data)
        answer = await server.ask(f"mutation {{ {make} }}")
        if "errors" in answer:
            assert [error["message"] for error in answer["errors"]] == [AWAY]
            return False
        server.made = getattr(server, "made", 0) + 1
        return process not in (None, victim)

    await until(works_again)


@contextlib.asynccontextmanager
async def watching(server, apollo):
    """The seqs that a subscriber has received, so far."""
    seen = []
    async with server.socket() as ws:
        payload = {"query": FEED, "variables": {"id": apollo}}
        await ws.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))

        async def read():
            async for text in ws:
                message = json.loads(text)
                if message["type"] == "next":
                    batch = message["payload"]["data"]["projectActivity"]["activities"]
                    seen.extend(activity["seq"] for activity in batch)

        reading = asyncio.create_task(read())
        yield lambda: seen
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
