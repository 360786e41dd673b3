"""The scripted model's server: the Messages API on loopback, as far as the agent's program speaks it.

It is stateless and deterministic: the same request has the same answer. What it refuses, the real API refuses too.
"""

import asyncio
import contextlib
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from demo import conversation, scenarios, script

NAME = "scripted"
HEADERS = {"omoi-model": NAME}
WHO = "This is the scripted model of OmoiOS: it plays a script chosen by words in the task, and thinks nothing.\n"
LARGEST_REQUEST_BYTES = 32 << 20  # as the real API
INPUT_CHUNK_CHARS = 40
STARTED_POLL_SECONDS = 0.005
ERRORS = {
    400: ("invalid_request_error", "This refusal is part of the script."),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "This refusal is part of the script."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This refusal is part of the script."),
    500: ("api_error", "This refusal is part of the script."),
    529: ("overloaded_error", "Overloaded"),
}
WORD = re.compile(r"\S+\s*|\s+")


class Cut(Exception):
    """Ends a response in its middle, as a lost connection does."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn with everything that a response to it needs."""

    turn: script.Turn
    id: str
    blocks: tuple[dict[str, Any], ...]
    input_tokens: int
    output_tokens: int

    @property
    def stop_reason(self) -> str:
        return "tool_use" if self.turn.uses else "end_turn"

    def usage(self, output_tokens: int) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        }

    def message(self, **more: Any) -> dict[str, Any]:
        empty: dict[str, Any] = {"stop_reason": None, "stop_sequence": None, "usage": self.usage(1), "content": []}
        return {"id": self.id, "type": "message", "role": "assistant", "model": NAME, **empty, **more}


def application(*, pace_seconds: float = 0.0) -> Starlette:
    """`pace_seconds` passes before each piece of a streamed answer, so that it can be watched."""

    async def messages(request: Request) -> Response:
        return await _messages(request, pace_seconds)

    return Starlette(
        routes=[
            Route("/", _who),
            Route("/api/hello", _who),
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", _count_tokens, methods=["POST"]),
        ]
    )


@contextlib.asynccontextmanager
async def serving(port: int = 0, *, pace_seconds: float = 0.0) -> AsyncIterator[str]:
    """Serve on loopback inside the running loop, from when it answers; the address is what a base URL should be."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:  # named: no Nagle delay
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        app = application(pace_seconds=pace_seconds)
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment] # they are the host's
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(STARTED_POLL_SECONDS)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            for answering in list(server.server_state.tasks):
                answering.cancel()  # a stalled answer would never end by itself
            await task


async def _who(request: Request) -> Response:
    del request
    return PlainTextResponse(WHO, headers=HEADERS)


async def _count_tokens(request: Request) -> Response:
    body = await _body(request)
    return body if isinstance(body, Response) else _json({"input_tokens": _tokens(len(body))})


async def _messages(request: Request, pace_seconds: float) -> Response:
    body = await _body(request)
    if isinstance(body, Response):
        return body
    try:
        asked = orjson.loads(body)
        read = conversation.read(asked)
    except orjson.JSONDecodeError:
        return _refusal(400, "The request body is not valid JSON")
    except conversation.Malformed as error:
        return _refusal(400, str(error))
    chosen = scenarios.choose(read.task)
    if chosen.status != 200:
        return _refusal(chosen.status)
    answer = _answer(read, body)
    if asked.get("stream"):
        return StreamingResponse(_stream(answer, pace_seconds), media_type="text/event-stream", headers=HEADERS)
    return StreamingResponse(_whole(answer), media_type="application/json", headers=HEADERS)


async def _body(request: Request) -> bytes | Response:
    """The body of a request with a key, or the refusal of one that has none or is too large."""
    if not request.headers.get("x-api-key") and not request.headers.get("authorization"):
        return _refusal(401)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_REQUEST_BYTES:
            return _refusal(413)
    return bytes(body)


def _answer(read: conversation.Conversation, body: bytes) -> Answer:
    turn = script.next_turn(scenarios.choose(read.task).play, read)
    blocks: list[dict[str, Any]] = []
    if turn.thinking and read.thinks:
        blocks.append({"type": "thinking", "thinking": turn.thinking, "signature": NAME})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    for use in turn.uses:
        key = f"{len(read.replies)} {len(blocks)} {read.task}"
        blocks.append(
            {"type": "tool_use", "id": f"toolu_{_digest(key.encode())}", "name": use.tool, "input": use.input}
        )
    return Answer(
        turn=turn,
        id=f"msg_{_digest(body)}",
        blocks=tuple(blocks),
        input_tokens=_tokens(len(body)) + turn.more_input_tokens,
        output_tokens=_tokens(len(orjson.dumps(blocks))) + turn.more_output_tokens,
    )


async def _whole(answer: Answer) -> AsyncIterator[bytes]:
    """One JSON object. The agent's program asks for it after a stream broke, so this breaks too."""
    usage = answer.usage(answer.output_tokens)
    full = orjson.dumps(answer.message(content=answer.blocks, stop_reason=answer.stop_reason, usage=usage))
    yield full[:1]
    await _break(answer.turn)
    yield full[1:]


async def _break(turn: script.Turn) -> None:
    if turn.breaks == "stall":
        await asyncio.Event().wait()  # until the client leaves or the server ends
    if turn.breaks == "cut":
        raise Cut


async def _stream(answer: Answer, pace_seconds: float) -> AsyncIterator[bytes]:
    yield _event("message_start", message=answer.message())
    yield _event("ping")
    for index, block in enumerate(answer.blocks):
        for kind, fields in _pieces(block):
            await asyncio.sleep(pace_seconds)
            yield _event(kind, index=index, **fields)
        await _break(answer.turn)
        yield _event("content_block_stop", index=index)
    usage = answer.usage(answer.output_tokens)
    yield _event("message_delta", delta={"stop_reason": answer.stop_reason, "stop_sequence": None}, usage=usage)
    yield _event("message_stop")


def _pieces(block: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A block as it is streamed: first its empty shape, then what fills it."""
    start, delta = "content_block_start", "content_block_delta"
    if block["type"] == "text":
        yield start, {"content_block": {"type": "text", "text": ""}}
        for word in WORD.findall(block["text"]):
            yield delta, {"delta": {"type": "text_delta", "text": word}}
    elif block["type"] == "thinking":
        yield start, {"content_block": {"type": "thinking", "thinking": "", "signature": ""}}
        for word in WORD.findall(block["thinking"]):
            yield delta, {"delta": {"type": "thinking_delta", "thinking": word}}
        yield delta, {"delta": {"type": "signature_delta", "signature": block["signature"]}}
    else:
        yield start, {"content_block": {**block, "input": {}}}
        text = orjson.dumps(block["input"]).decode()
        for at in range(0, len(text), INPUT_CHUNK_CHARS):
            yield delta, {"delta": {"type": "input_json_delta", "partial_json": text[at : at + INPUT_CHUNK_CHARS]}}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def _json(value: Any, status: int = 200, **headers: str) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json", headers={**HEADERS, **headers})


def _refusal(status: int, message: str = "") -> Response:
    kind, sentence = ERRORS[status]
    later = {"retry-after": "1"} if status == 429 else {}
    return _json({"type": "error", "error": {"type": kind, "message": message or sentence}}, status, **later)


def _tokens(size_bytes: int) -> int:
    return size_bytes // 4 + 1


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]
