"""One graphql-transport-ws connection: its handshake, its messages, and the operations that it owns until they end."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import structlog
from graphql import OperationType
from starlette.types import Receive, Scope, Send

from app.auth import Credentials, Principal
from app.errors import AppError, Forbidden, RateLimited, RequestError, Unauthenticated
from app.settings import Settings
from schema import wire
from schema.access import Access, Crowded, Headers, new_request_id
from schema.answers import Answers, Caller, Request, read, refusal
from schema.errors import Whose
from schema.wire import Answer

PROTOCOL = "graphql-transport-ws"
REASON_BYTES = 123  # what a close frame holds
SEND_NOW = "omoi.send_now"  # a server's extension of ASGI: `send` sends a text at once, unless the peer lags behind

SendNow = Callable[[bytes], bool]

# Clients of graphql-ws give up for good on 1011 and 1009, so that neither is ever chosen here. A frame several times
# over the limit never gets here: the server in front of us closes with 1009 then.
GOING_AWAY = 1012
TRY_LATER = 1013

log = structlog.get_logger(__name__)


class Closing(Exception):
    """The connection ends here, for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Gone(Exception):
    """The peer is not there any more."""


class Running:
    """An operation that the client may still end; `task` is set as soon as there is one."""

    task: asyncio.Task[None]
    streams = False


class Socket:
    def __init__(
        self, access: Access, answers: Answers, settings: Settings, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._access = access
        self._answers = answers
        self._settings = settings
        self._headers: Headers = dict(scope["headers"])
        self._offered: list[str] = scope.get("subprotocols") or []
        self._receive, self._asgi_send = receive, send
        self._send_now: SendNow | None = scope.get("extensions", {}).get(SEND_NOW, {}).get("send")
        self._operations: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # also those that the client has left and that are ending
        self._principal: Principal | None = None
        self._revoked: Exception | None = None
        self._accepted = self._draining = self._closed = False

    def drain(self) -> None:
        """Close with 1012; clients come back at once, elsewhere."""
        self._draining = True
        if self._accepted:
            self._spawn(self._close(GOING_AWAY, "The server is restarting."))

    async def run(self) -> None:
        try:
            await self._accept()
            with self._access.room.place():
                await self._serve()
        except Crowded as crowded:
            await self._close(TRY_LATER, crowded.message)
        except Closing as closing:
            await self._close(closing.code, closing.reason)
        except Gone:
            pass
        except Exception:
            # The edge: one connection's fault must not look like the server's, and the client may come back.
            log.exception("socket_failed")
            await self._close(TRY_LATER, "Something went wrong on our side.")
        finally:
            await self._end()

    async def _accept(self) -> None:
        await self._receive()  # websocket.connect
        if self._access.refuses_origin(self._headers):
            await self._asgi_send({"type": "websocket.close"})  # before it is accepted: an HTTP 403
            raise Gone
        known = PROTOCOL in self._offered
        # Clients look at the close code only if the handshake chose one of their protocols.
        subprotocol = PROTOCOL if known else next(iter(self._offered), None)
        await self._raw_send({"type": "websocket.accept", "subprotocol": subprotocol})
        self._accepted = True
        if not known:
            raise Closing(4406, "Subprotocol not acceptable")
        if self._draining:
            raise Closing(GOING_AWAY, "The server is restarting.")

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(self._settings.socket_init_seconds):
                self._principal = await self._initialise()
        except TimeoutError:
            raise Closing(4408, "Connection initialisation timeout") from None
        with self._access.room.seat(self._principal):
            self._spawn(self._watch(self._principal))
            await self._send(b'{"type":"connection_ack"}')
            while True:
                await self._take(await self._message(), self._principal)

    async def _initialise(self) -> Principal:
        while (message := await self._message())["type"] != "connection_init":
            await self._take(message, None)
        payload = message.get("payload")
        if payload is not None and not isinstance(payload, dict):
            raise Closing(4400, "connection_init: `payload` must be an object")
        credentials = self._access.from_init(self._headers, payload or {})
        try:
            return await self._access.authenticate(credentials)
        except AppError as error:
            raise _refused(credentials, error) from None

    async def _message(self) -> dict[str, Any]:
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            raise Gone
        text = event.get("text")
        if text is None:
            raise Closing(4400, "Messages are text frames")
        if len(text) > self._settings.frame_bytes or len(text.encode(errors="replace")) > self._settings.frame_bytes:
            raise Closing(4400, f"A message has at most {self._settings.frame_bytes} bytes")
        try:
            message = wire.decode(text)
        except wire.NotJson as error:
            raise Closing(4400, str(error)) from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise Closing(4400, "A message is a JSON object with a `type`")
        return message

    async def _take(self, message: dict[str, Any], principal: Principal | None) -> None:
        match message["type"]:
            case "ping":
                await self._pong(message)
            case "pong":
                pass
            case "connection_init":
                raise Closing(4429, "Too many initialisation requests")
            case "subscribe":
                if principal is None:
                    raise Closing(4401, "Unauthorized")
                await self._subscribe(message, principal)
            case "complete":
                self._leave(_id(message))
            case unknown:
                raise Closing(4400, f"Unknown message type {unknown!r}")

    async def _pong(self, ping: dict[str, Any]) -> None:
        payload = ping.get("payload")
        if payload is not None and not isinstance(payload, dict):
            raise Closing(4400, "ping: `payload` must be an object")
        await self._send(wire.encode({"type": "pong"} | ({"payload": payload} if payload is not None else {})))

    async def _subscribe(self, message: dict[str, Any], principal: Principal) -> None:
        id_ = _id(message)
        if id_ in self._operations:
            raise Closing(4409, f"Subscriber for {id_} already exists")
        try:
            request = read(message.get("payload"))
        except RequestError as error:
            raise Closing(4400, f"subscribe: {error.message}") from None
        whose = Whose(new_request_id())
        if self._revoked:
            await self._send_error(id_, refusal(self._revoked, whose))
        elif len(self._tasks) > self._settings.socket_operations:  # one task is the watch over the principal
            most = self._settings.socket_operations
            await self._send_error(id_, refusal(RateLimited(f"A socket carries at most {most} operations."), whose))
        else:
            self._operations[id_] = running = Running()
            running.task = self._spawn(self._operate(id_, running, request, Caller(principal, whose.request_id)))

    def _leave(self, id_: str) -> None:
        if running := self._operations.pop(id_, None):
            running.task.cancel()

    async def _operate(self, id_: str, running: Running, request: Request, caller: Caller) -> None:
        with suppress(Gone):
            try:
                last = await self._execute(id_, running, request, caller)
            except Gone:
                raise
            except Exception as error:  # noqa: BLE001 - the edge: an operation must not end in silence
                last = refusal(error, Whose(caller.request_id))
            # The id is free before the client learns that it is.
            self._operations.pop(id_, None)
            if last:
                await self._send_error(id_, last)
            else:
                await self._send(b'{"id":' + wire.encode(id_) + b',"type":"complete"}')

    async def _execute(self, id_: str, running: Running, request: Request, caller: Caller) -> Answer | None:
        """Send every result. What is returned is the error that the operation ends with."""
        try:
            operation = self._answers.prepare(request, caller.principal)
        except Exception as error:  # noqa: BLE001 - the edge: a refusal, or a fault that is logged and masked
            return refusal(error, Whose(caller.request_id))
        head = b'{"id":' + wire.encode(id_) + b',"type":"next","payload":'
        if operation.kind is not OperationType.SUBSCRIPTION:
            answer = await self._answers.answer(operation, request, caller)
            if answer.errors:
                return answer
            await self._send(head + answer.body + b"}")
            return None
        running.streams = True
        async with aclosing(self._answers.stream(operation, request, caller, partial(self._offer, head))) as answers:
            async for answer in answers:
                if answer.errors:
                    return answer
                await self._send(head + answer.body + b"}")
        return None

    async def _watch(self, principal: Principal) -> None:
        """End every stream once the principal may act no longer; what is asked after that is refused."""
        self._revoked = await self._access.ended(principal)
        ended = [id_ for id_, running in self._operations.items() if running.streams]
        for id_ in ended:
            self._leave(id_)
        with suppress(Gone):
            for id_ in ended:
                await self._send_error(id_, refusal(self._revoked, Whose(new_request_id())))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send_error(self, id_: str, answer: Answer) -> None:
        await self._send(wire.encode({"id": id_, "type": "error", "payload": answer.errors}))

    async def _send(self, message: bytes) -> None:
        await self._raw_send({"type": "websocket.send", "text": message.decode()})

    def _offer(self, head: bytes, answer: Answer) -> bool:
        return self._send_now is not None and not self._closed and self._send_now(b"".join((head, answer.body, b"}")))

    async def _raw_send(self, event: dict[str, Any]) -> None:
        if self._closed:
            raise Gone
        try:
            await self._asgi_send(event)
        except (OSError, RuntimeError):  # how servers say that the peer has left, or was sent away for a broken frame
            raise Gone from None

    async def _close(self, code: int, reason: str) -> None:
        with suppress(Gone):
            await self._raw_send({"type": "websocket.close", "code": code, "reason": _cut(reason)})
        self._closed = True

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _id(message: dict[str, Any]) -> str:
    id_ = message.get("id")
    if isinstance(id_, str) and id_:
        return id_
    raise Closing(4400, f"{message['type']}: `id` must be a string that is not empty")


def _refused(credentials: Credentials, error: AppError) -> Closing:
    if not isinstance(error, Unauthenticated | Forbidden):  # not the caller's fault, so that they may come back
        return Closing(TRY_LATER, error.message)
    if isinstance(error, Unauthenticated) and credentials.bearer is None and credentials.cookie is None:
        return Closing(4401, "Unauthorized")
    return Closing(4403, error.message)


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore")
