"""From a new ticket to a running worker, beside the start of the same box by itself."""

import asyncio
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import Measured, omoi
from orchestrator.providers import Order
from orchestrator.providers.local.provider import LocalProvider

TICKETS = 15
GOAL_MS = 300.0
PROJECT = 'mutation { createProject(input: {name: "Pick up"}) { project { id } } }'
TICKET = """mutation($input: CreateTicketInput!) { createTicket(input: $input) {
  ticket { createdAt tasks { nodes { id } } } errors { message }
} }"""
TASK = """query($id: ID!) { task(id: $id) {
  status sandboxes { nodes { boot { name finishedAt } } }
} }"""


def main() -> None:
    alone = asyncio.run(_boxes())
    with omoi(ORCHESTRATOR_ENABLED="true") as server:
        picked_up = asyncio.run(_tickets(server))
    print(f"a box alone:               median {statistics.median(alone):4.0f} ms")
    print(f"ticket to running worker:  median {statistics.median(picked_up):4.0f} ms, goal {GOAL_MS:.0f}")
    print(f"added by the way there:    {statistics.median(picked_up) - statistics.median(alone):4.0f} ms")


async def _boxes() -> list[float]:
    taken = []
    with tempfile.TemporaryDirectory(prefix="omoi-", dir="/tmp") as folder:
        provider = LocalProvider(Path(folder), deployment="bench", machines=1)
        await provider.start("http://127.0.0.1:1")
        for number in range(TICKETS):
            name = f"omoi-bench-{number}"
            files = {"worker.pyz": b"import time; time.sleep(60)"}
            began = time.perf_counter()
            await provider.create(Order(name=name, labels={"deployment": "bench"}, env={}, files=files))
            taken.append((time.perf_counter() - began) * 1000)
            await provider.delete(name)
    return taken


async def _tickets(server: Measured) -> list[float]:
    headers = {"authorization": f"Bearer {server.token}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:

        async def ask(document: str, **variables: Any) -> Any:
            answer = await http.post(server.url, json={"query": document, "variables": variables})
            return answer.json()["data"]

        project_id = (await ask(PROJECT))["createProject"]["project"]["id"]
        return [await _one(ask, project_id) for _ in range(TICKETS)]


async def _one(ask: Any, project_id: str) -> float:
    """Milliseconds by the server's own clock, from the ticket's creation to the end of its machine's start."""
    made = (await ask(TICKET, input={"projectId": project_id, "title": "[[answer]] Hello"}))["createTicket"]["ticket"]
    while True:
        task = (await ask(TASK, id=made["tasks"]["nodes"][0]["id"]))["task"]
        if task["status"] in ("COMPLETED", "FAILED"):
            [sandbox] = task["sandboxes"]["nodes"]
            running = next(step["finishedAt"] for step in sandbox["boot"] if step["name"] == "machine")
            return (_moment(running) - _moment(made["createdAt"])).total_seconds() * 1000
        await asyncio.sleep(0.05)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


if __name__ == "__main__":
    main()
