"""A recorder in the server's place: it takes what a worker says, keeps it, and forgives nothing."""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TOKEN = "omoi_sbx_test-token"
LARGEST_BODY_BYTES = 1 << 20
FIELDS = ("reportEvents", "acknowledgeMessages", "finishSandbox", "issueGitCredential", "workerInbox")
EVENT_KEYS = {"producerSeq", "type", "source", "turn", "occurredAt", "payload"}


class Plane:
    """What it was told, and what it shall say."""

    def __init__(self) -> None:
        self.url = ""
        self.events: list[dict[str, Any]] = []
        self.reports = 0
        self.blobs: dict[str, bytes] = {}
        self.messages: list[dict[str, Any]] = []
        self.acknowledged: list[tuple[str, int]] = []
        self.finished: list[dict[str, Any]] = []
        self.operations: list[str] = []
        self.password = "git-password"
        self.desired = "RUN"
        self.away = False  # answers 503 to everything
        self.over = False  # this attempt has ended
        self.refused_types: set[str] = set()
        self.malformed_types: set[str] = set()  # a request with one of these is refused as a whole
        self.malformed_fields: set[str] = set()  # so is one that gives one of these
        self.full = False  # takes no more blobs
        self.busy: dict[str, float] = {}  # by the door, until when it answers that it is asked too often
        self.asked_too_soon = 0
        self.forgets_once: int | None = None  # answers as if it had only so many
        self.authorizations: set[str] = set()
        self._changed = asyncio.Event()

    def say(self, body: str, kind: str = "USER", author: str = "Ada", author_kind: str = "USER") -> str:
        name = f"m{len(self.messages) + 1}"
        told = {"id": name, "kind": kind, "body": body, "author": author, "authorKind": author_kind}
        self.messages.append(told)
        self._changed.set()
        return name

    def stop(self) -> None:
        self.desired = "STOP"
        self._changed.set()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.events if event["type"] == kind]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def text(self, value: Any) -> str:
        """A payload's text, wherever it is."""
        return self.blobs[value["blob"]].decode() if isinstance(value, dict) else value

    @property
    def pending(self) -> list[dict[str, Any]]:
        done = {name for name, _ in self.acknowledged}
        return [message for message in self.messages if message["id"] not in done]

    async def graphql(self, request: Request) -> Response:
        body = await request.body()
        if self.away:
            return Response(status_code=503)
        if len(body) > LARGEST_BODY_BYTES:
            return Response(status_code=413)
        if request.headers.get("authorization") != f"Bearer {TOKEN}" or self.over:
            return _error("UNAUTHENTICATED", "This attempt has ended.")
        asked = json.loads(body)
        [field] = [name for name in FIELDS if f"{name} " in asked["query"] or f"{name}(" in asked["query"]]
        if field == "workerInbox":
            assert "text/event-stream" in request.headers["accept"]
            return StreamingResponse(self._inbox(), media_type="text/event-stream")
        if refusal := self._refusal(asked["variables"]["input"]):
            return refusal
        answer = getattr(self, f"_{field}")(**asked["variables"]["input"])
        return JSONResponse({"data": {field: {"desiredState": self.desired, "errors": [], **answer}}})

    async def blob(self, request: Request) -> Response:
        if self.away:
            return Response(status_code=503)
        if request.headers.get("authorization") != f"Bearer {TOKEN}" or self.over:
            return Response(status_code=401)
        if self._is_busy("blobs"):
            return Response(status_code=429, headers={"retry-after": "1"})
        if self.full:
            return _error("LIMIT_REACHED", "A sandbox keeps 1 GiB of blobs at most.", 413)
        data = gzip.decompress(await request.body())
        if hashlib.sha256(data).hexdigest() != request.path_params["name"]:
            return Response(status_code=400)
        known = request.path_params["name"] in self.blobs
        self.blobs[request.path_params["name"]] = data
        return Response(status_code=200 if known else 201)

    def _refusal(self, given: dict[str, Any]) -> Response | None:
        if self._is_busy("graphql"):
            return _error("RATE_LIMITED", "Too often.", 429, retryAfter=1)
        types = {event["type"] for event in given.get("events", ())}
        if types & self.malformed_types or any(given.get(name) for name in self.malformed_fields):
            return _error("BAD_USER_INPUT", "The payload is too deep.", 400)
        return None

    def _is_busy(self, door: str) -> bool:
        """From its first request on for a second, which it asks to wait for."""
        if self.busy.get(door) == 0:
            self.busy[door] = time.monotonic() + 1
        elif time.monotonic() < self.busy.get(door, 0):
            self.asked_too_soon += 1
        return time.monotonic() < self.busy.get(door, 0)

    def _reportEvents(self, events: list[dict[str, Any]], *, heartbeat: bool) -> dict[str, Any]:  # noqa: N802
        assert heartbeat
        self.reports += 1
        errors: list[dict[str, str]] = []
        for event in events:
            number = event["producerSeq"]
            assert set(event) == EVENT_KEYS, event
            if number <= len(self.events):
                if self.events[number - 1] != event:
                    errors.append({"message": f"{number} was reported before with other content.", "code": "X"})
            elif number > len(self.events) + 1 or event["type"] in self.refused_types:
                errors.append({"message": f"{len(self.events) + 1} is expected.", "code": "X"})
                break
            else:
                assert all(name in self.blobs for name in _blobs(event["payload"])), "a blob that was not sent ahead"
                self.events.append(event)
        if self.forgets_once is not None and len(self.events) > self.forgets_once:
            del self.events[self.forgets_once :]
            self.forgets_once = None
        return {"acceptedThrough": len(self.events), "pendingMessages": self.pending, "errors": errors}

    def _acknowledgeMessages(self, messageIds: list[str], deliveredInTurn: int) -> dict[str, Any]:  # noqa: N802, N803
        self.acknowledged += [(name, deliveredInTurn) for name in messageIds]
        return {}

    def _finishSandbox(self, **report: Any) -> dict[str, Any]:  # noqa: N802
        assert report.get("transcriptBlob") is None or report["transcriptBlob"] in self.blobs
        self.finished.append(report)
        return {}

    def _issueGitCredential(self, operation: str) -> dict[str, Any]:  # noqa: N802
        self.operations.append(operation)
        return {"username": "x-access-token", "password": self.password}

    async def _inbox(self) -> AsyncIterator[str]:
        while not self.away:
            self._changed.clear()
            answer = {"messages": self.pending, "desiredState": self.desired}
            yield f"event: next\ndata: {json.dumps({'data': {'workerInbox': answer}})}\n\n"
            await self._changed.wait()
        yield "event: complete\n\n"

    async def hang_up(self) -> None:
        self.away = True
        self._changed.set()


@contextlib.asynccontextmanager
async def serving(*, more: tuple[Route, ...] = ()) -> AsyncIterator[Plane]:
    """A plane on loopback, with other routes of the same address beside it."""
    plane = Plane()
    routes = [
        Route("/graphql", plane.graphql, methods=["POST"]),
        Route("/blobs/{name}", plane.blob, methods=["PUT"]),
        *more,
    ]
    async with listening(Starlette(routes=routes)) as plane.url:
        yield plane
        plane.stop()  # lets the inbox end


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=0)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def basic(request: Request) -> str:
    """The password that a request carries."""
    given = request.headers.get("authorization", "")
    return base64.b64decode(given[6:]).decode().partition(":")[2] if given.startswith("Basic ") else ""


def _error(code: str, message: str, status: int = 401, **more: Any) -> Response:
    return JSONResponse({"errors": [{"message": message, "extensions": {"code": code, **more}}]}, status)


def _blobs(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["blob"]] if "blob" in value else [name for item in value.values() for name in _blobs(item)]
    return [name for item in value for name in _blobs(item)] if isinstance(value, list) else []
