"""Logs: one JSON object a line, named by an event, without anything that was written or that opens doors."""

import json

import pytest

from tests.servers import short_folder, up

CANARY = "canary7f3a"


@pytest.fixture(scope="module")
async def lines():
    """What a server in production logs over a life in which a canary is planted wherever there is room."""
    with short_folder() as folder:
        settings = {
            "OMOI_PRODUCTION": "true",
            "OMOI_ACCESS_LOG": "true",
            "REDIS_URL": "redis://:canary7f3a@127.0.0.1:1",
        }
        async with up(folder / "data", **settings) as server:
            await server.http.get("/sign-in", params={"token": CANARY})
            await server.sign_in()
            made = await server.ask(
                "mutation($n: String!) { createProject(input: {name: $n}) { project { id } } }", n=CANARY
            )
            await plant(server, made["data"]["createProject"]["project"]["id"])
        text = server.log.read_text()
    for secret in (CANARY, server.session, "omoi_ses_", "omoi_link_", "omoi_pat_"):
        assert secret not in text
    return text.splitlines()


async def plant(server, project):
    """Requests that succeed, that are refused and that break, each with a canary in it."""
    ticket = "mutation($id: ID!, $t: String!) { createTicket(input: {projectId: $id, title: $t}) { ticket { id } } }"
    await server.ask(ticket, id=project, t=CANARY)
    await server.ask(ticket, id=CANARY, t=CANARY * 1000)
    await server.ask(f'{{ project(id: "{CANARY}") {{ id }} }}')
    await server.ask(f"query {CANARY} {{ {CANARY} }}")
    await server.ask("{ viewer { kind } ", **{CANARY: CANARY})
    await server.http.get("/graphql", params={"query": f'{{ project(id: "{CANARY}") {{ id }} }}'})
    await server.http.post("/graphql", content=CANARY, headers={"content-type": "application/json"})
    await server.http.post("/graphql", json={"query": "{viewer{kind}}"}, headers={"authorization": f"Bearer {CANARY}"})
    await server.http.get("/livez", headers={"x-request-id": f"{CANARY} {CANARY}", "user-agent": CANARY})
    await server.http.get("/graphiql/assets/x", params={CANARY: CANARY})
    async with server.socket() as ws:
        await ws.send(CANARY)
        await ws.wait_closed()


def test_every_line_is_one_json_object(lines):
    """Log collectors need no rule for this server: each line stands for one event, with a time and a level."""
    assert len(lines) > 10
    for line in lines:
        entry = json.loads(line)
        assert entry["event"].replace("_", "").isalnum(), line
        assert {"level", "timestamp"} <= set(entry)


def test_what_happened_is_in_them(lines):
    """Requests by path and status, and the Redis that was not there."""
    entries = [json.loads(line) for line in lines]
    assert [entry["event"] for entry in entries].count("redis_lost") == 1
    served = {
        (entry["method"], entry["path"], entry["status"]) for entry in entries if entry["event"] == "request_served"
    }
    assert {("GET", "/sign-in", 403), ("GET", "/sign-in", 303), ("POST", "/graphql", 200)} <= served


def test_nothing_is_said_twice(lines):
    """No line of a library repeats what ours have said."""
    assert {json.loads(line)["event"] for line in lines} <= {"request_served", "redis_lost", "operation_failed"}
