"""The limit: Starlette sends what it is given to all sockets of a topic, through one queue for each."""

import asyncio
import json
import socket
from collections import defaultdict

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

FIRST = '{"id":"1","type":"next","payload":{"data":{"sandboxEvents":{"cursor":"","caughtUp":true,"events":[]}}}}'
queues: defaultdict[str, set[asyncio.Queue[str]]] = defaultdict(set)


async def watch(ws: WebSocket) -> None:
    await ws.accept("graphql-transport-ws")
    await ws.receive_text()
    await ws.send_text('{"type":"connection_ack"}')
    topic = json.loads(await ws.receive_text())["payload"]["variables"]["id"]
    queue: asyncio.Queue[str] = asyncio.Queue()
    queues[topic].add(queue)
    await ws.send_text(FIRST)
    while True:
        await ws.send_text(await queue.get())


async def publish(request: Request) -> Response:
    text = (await request.body()).decode()
    for queue in queues[request.query_params["topic"]]:
        queue.put_nowait(text)
    return Response()


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    app = Starlette(routes=[WebSocketRoute("/graphql", watch), Route("/publish", publish, methods=["POST"])])
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])
