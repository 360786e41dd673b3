"""The peer of the project page: the same rows through plain SQLAlchemy and orjson, with no GraphQL between."""

import os
import socket
from collections import defaultdict
from typing import Any

import orjson
import uvicorn
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.models import Task, Ticket, TicketBlocker

engine = create_async_engine(os.environ["BENCHMARK_DATABASE"], pool_size=20)
sessions = async_sessionmaker(engine, expire_on_commit=False)


async def page(request: Request) -> Response:
    async with sessions() as session:
        tickets = (await session.scalars(select(Ticket).order_by(Ticket.number.desc()).limit(50))).all()
        keys = [ticket.id for ticket in tickets]
        place = func.row_number().over(partition_by=Task.ticket_id, order_by=Task.id).label("place")
        ranked = select(Task.id, place).where(Task.ticket_id.in_(keys)).subquery()
        first = select(Task).join(ranked, ranked.c.id == Task.id).where(ranked.c.place <= 5).order_by(Task.id)
        tasks = (await session.scalars(first)).all()
        blockers = await session.execute(
            select(TicketBlocker.ticket_id, Ticket)
            .join(Ticket, Ticket.id == TicketBlocker.blocker_id)
            .where(TicketBlocker.ticket_id.in_(keys))
        )
        answer = _answer(tickets, tasks, blockers.all())
        return Response(orjson.dumps(answer, default=str), media_type="application/json")


def _answer(tickets: Any, tasks: Any, blockers: Any) -> dict[str, Any]:
    tasks_of, blockers_of = defaultdict(list), defaultdict(list)
    for task in tasks:
        tasks_of[task.ticket_id].append({"id": task.id, "title": task.title, "status": task.status.name})
    for ticket_id, blocker in blockers:
        blockers_of[ticket_id].append({"id": blocker.id, "number": blocker.number})
    nodes = [
        {
            "id": ticket.id,
            "number": ticket.number,
            "title": ticket.title,
            "status": ticket.status.name,
            "blockedBy": blockers_of[ticket.id],
            "tasks": {"nodes": tasks_of[ticket.id]},
        }
        for ticket in tickets
    ]
    return {"data": {"project": {"tickets": {"nodes": nodes}}}}


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    app = Starlette(routes=[Route("/graphql", page, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
