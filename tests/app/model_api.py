"""The model's API as a test's own server: it says what a test wants, and refuses what the real one refuses."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field


@dataclass
class Asked:
    """A request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ModelApi:
    """Answers each request with `pieces`: bytes are sent, an Event is waited for, CUT breaks the connection."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    pieces: list[object] = field(default_factory=list)
    open: int = 0  # answers that are not complete
    left: int = 0  # clients that went before theirs was

    def answers(self, *pieces: object, status: int = 200, media: str = "text/event-stream", **headers: str) -> None:
        head = {"content-type": media, "transfer-encoding": "chunked", **headers}
        lines = [f"HTTP/1.1 {status} Any", *(f"{name.replace('_', '-')}: {value}" for name, value in head.items())]
        self.pieces = ["\r\n".join([*lines, "", ""]).encode(), *pieces]

    async def serve(self, reader, writer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                if refusal := _refusal(asked):
                    writer.write(refusal)
                    continue
                self.open += 1
                try:
                    if not await self._answer(reader, writer):
                        break
                finally:
                    self.open -= 1
        writer.close()

    async def _answer(self, reader, writer) -> bool:
        head, *pieces = self.pieces
        writer.write(head)
        for piece in pieces:
            if piece is CUT:
                return False
            if isinstance(piece, bytes):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
            elif await _left(reader, piece):
                self.left += 1
                return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


CUT = object()


@contextlib.asynccontextmanager
async def serving():
    api = ModelApi()
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def start(model: str = "claude-sonnet-4-5", **usage: int) -> bytes:
    return event("message_start", message={"id": "msg_1", "model": model, "usage": {"output_tokens": 1, **usage}})


def delta(output_tokens: int) -> bytes:
    return event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": output_tokens})


def said(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


STOP = event("message_stop")


async def _left(reader, moment: asyncio.Event) -> bool:
    """Whether the client went before the moment came."""
    gone, come = asyncio.create_task(reader.read(1)), asyncio.create_task(moment.wait())
    await asyncio.wait({gone, come}, return_when=asyncio.FIRST_COMPLETED)
    left = gone.done()
    for task in (gone, come):
        task.cancel()
    await asyncio.gather(gone, come, return_exceptions=True)
    return left


async def _read(reader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
    assert len(headers) == len(lines), f"a header came twice: {lines}"
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(line, headers, body)


def _refusal(asked: Asked) -> bytes:
    keys = [name for name in ("x-api-key", "authorization") if asked.headers.get(name)]
    if len(keys) == 1 and asked.headers.get("anthropic-version"):
        return b""
    body = json.dumps({"type": "error", "error": {"type": "authentication_error", "message": f"keys: {keys}"}})
    return f"HTTP/1.1 401 Any\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
