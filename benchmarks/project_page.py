"""A project page, 50 tickets with 5 tasks each and their blockers, beside the same rows without GraphQL."""

import asyncio
from pathlib import Path

from app.postgres import attached
from benchmarks import load, rows
from benchmarks.processes import Measured, omoi, peer

SECONDS = 6.0
ROUNDS = 3
PAGE = """query($id: ID!) { project(id: $id) { tickets(first: 50) { nodes {
    id number title status blockedBy { id number } tasks(first: 5) { nodes { id title status } } } } } }"""
TICKET = "mutation($i: CreateTicketInput!) { createTicket(input: $i) { ticket { id } } }"
TASK = "mutation($i: CreateTaskInput!) { createTask(input: $i) { task { id } } }"


def main() -> None:
    with omoi() as ours:
        project_id = rows.project(ours)
        _fill(ours, project_id)
        url = asyncio.run(_url(ours))
        with peer("plain_rows", BENCHMARK_DATABASE=url) as plain:
            for _ in range(ROUNDS):
                variables = {"id": project_id}
                plain_rate, our_rate = (
                    load.measure(server, PAGE, seconds=SECONDS, variables=variables) for server in (plain, ours)
                )
                print(
                    f"OmoiOS {1000 / our_rate.per_cpu_second:6.2f} ms   SQLAlchemy and orjson "
                    f"{1000 / plain_rate.per_cpu_second:6.2f} ms   of CPU a page, "
                    f"{plain_rate.per_cpu_second / our_rate.per_cpu_second:.2f} times"
                )


def _fill(server: Measured, project_id: str) -> None:
    before: list[str] = []
    for number in range(60):
        wanted = {"projectId": project_id, "title": f"Ticket {number}", "startTask": False, "blockedBy": before[-2:]}
        ticket = rows.ask(server, TICKET, i=wanted)["createTicket"]["ticket"]["id"]
        for place in range(6):
            rows.ask(server, TASK, i={"ticketId": ticket, "title": f"Task {place}"})
        before.append(ticket)


async def _url(server: Measured) -> str:
    async with attached(Path(server.data), holder="benchmark") as url:
        return url


if __name__ == "__main__":
    main()
