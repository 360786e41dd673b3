"""The peer: the same subscription served by Strawberry's own view, with a remedy for graphql-core's growing memo."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncGenerator

import orjson
import strawberry
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from strawberry.asgi import GraphQL
from strawberry.schema.schema import StrawberryGraphQLCoreExecutionContext


@strawberry.interface
class SandboxEvent:
    id: strawberry.ID
    seq: int
    cursor: str
    type: str
    source: str
    turn: int | None
    occurred_at: str
    recorded_at: str


@strawberry.type
class MessageEvent(SandboxEvent):
    text: str


@strawberry.type
class Payload:
    cursor: str
    caught_up: bool
    events: list[SandboxEvent]


@strawberry.type
class Query:
    ready: bool = True


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def sandbox_events(self, sandbox_id: strawberry.ID) -> AsyncGenerator[Payload, None]:
        queue: asyncio.Queue[Payload] = asyncio.Queue()
        queues[sandbox_id].add(queue)
        try:
            yield Payload(cursor="", caught_up=True, events=[])
            while True:
                yield await queue.get()
        finally:
            queues[sandbox_id].discard(queue)


class FreshMemo(StrawberryGraphQLCoreExecutionContext):
    """Each event has a memo of its own; the one that they share would keep every event's selections."""

    def build_per_event_executor(self, payload):
        executor = super().build_per_event_executor(payload)
        executor._relevant_sub_fields = {}  # noqa: SLF001
        return executor


async def publish(request: Request) -> Response:
    told = orjson.loads(await request.body())["payload"]["data"]["sandboxEvents"]
    events: list[SandboxEvent] = [
        MessageEvent(
            id=event["id"],
            seq=event["seq"],
            cursor=event["cursor"],
            type=event["type"],
            source=event["source"],
            turn=event["turn"],
            occurred_at=event["occurredAt"],
            recorded_at=event["recordedAt"],
            text=event["text"],
        )
        for event in told["events"]
    ]
    payload = Payload(cursor=told["cursor"], caught_up=told["caughtUp"], events=events)
    for queue in queues[request.query_params["topic"]]:
        queue.put_nowait(payload)
    return Response()


queues: defaultdict[str, set[asyncio.Queue[Payload]]] = defaultdict(set)
schema = strawberry.Schema(Query, subscription=Subscription, types=[MessageEvent], execution_context_class=FreshMemo)
view = GraphQL[None, None](schema)
routes = [
    Route("/graphql", view),
    WebSocketRoute("/graphql", view),
    Route("/publish", publish, methods=["POST"]),
]

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        Starlette(routes=routes),
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])
