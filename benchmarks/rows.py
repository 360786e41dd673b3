"""Rows to measure with: made through the API while they are few, by SQL where they are many."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy.engine import make_url

from app import ids
from app.postgres import attached
from benchmarks.processes import Measured

PROJECT = 'mutation { createProject(input: {name: "Benchmark"}) { project { id } } }'
TICKETS = """
    INSERT INTO tickets (id, project_id, number, title, description, kind, status, priority, created_by)
    SELECT gen_random_uuid(), $1, n, 'Ticket ' || n, '', 'feature', 'backlog', 'medium', NULL
    FROM generate_series($2::int, $3::int) AS n
"""
ACTIVITIES = """
    INSERT INTO activities (stream_id, seq, id, verb, summary, actor, actor_kind, subject_kind, subject_id)
    SELECT $1, n, gen_random_uuid(), 'project.changed', 'changed something', 'somebody', 'user', 'project', $1
    FROM generate_series($2::bigint, $3::bigint) AS n
"""
AT_ONCE = 50_000


def ask(server: Measured, query: str, **variables: Any) -> Any:
    request = urllib.request.Request(
        server.url,
        json.dumps({"query": query, "variables": variables}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {server.token}"},
    )
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    assert "errors" not in answer, answer
    return answer["data"]


def project(server: Measured) -> str:
    made: str = ask(server, PROJECT)["createProject"]["project"]["id"]
    return made


def many(server: Measured, statement: str, project_id: str, *, first: int, last: int) -> None:
    """Insert numbered rows straight into the server's embedded database."""
    asyncio.run(_many(server, statement, project_id, first, last))


async def _many(server: Measured, statement: str, project_id: str, first: int, last: int) -> None:
    decoded = ids.decode(project_id)
    assert decoded is not None
    async with attached(Path(server.data), holder="benchmark") as url:
        connection = await connect(url)
        for start in range(first, last + 1, AT_ONCE):
            await connection.execute(statement, decoded[1], start, min(start + AT_ONCE - 1, last))
        if statement == ACTIVITIES:
            await connection.execute("UPDATE streams SET last_seq = $2 WHERE id = $1", decoded[1], last)
        else:
            await connection.execute("UPDATE projects SET last_ticket_number = $2 WHERE id = $1", decoded[1], last)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


async def connect(url: str) -> asyncpg.Connection:
    parts = make_url(url)
    return await asyncpg.connect(
        host=parts.query["host"], port=int(str(parts.query["port"])), user=parts.username, database=parts.database
    )
