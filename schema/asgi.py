"""The endpoint /graphql: HTTP as GraphQL over HTTP wants it. Event streams and sockets are handed on."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qsl

import strawberry
from graphql import OperationType
from starlette.types import Receive, Scope, Send

from app.auth import Principal
from app.errors import BadUserInput, RequestError, Unavailable
from app.settings import Settings
from schema import wire
from schema.access import Access, Authenticate, Headers, Room, UntilRevoked, request_id_of
from schema.answers import Answers, Caller, MakeContext, Observe, Request, read, refusal
from schema.errors import CostExceeded, Refused, Whose
from schema.execution import Operation
from schema.media import EVENT_STREAM, JSON, is_json, negotiate
from schema.socket import Socket
from schema.sse import ABORT, Abort, EventStream, single
from schema.wire import Answer

STATUSES = {"UNAUTHENTICATED": 401, "FORBIDDEN": 403, "RATE_LIMITED": 429, "INTERNAL": 500}
ALLOW_BOTH = ((b"allow", b"GET, POST"),)
ALLOW_POST = ((b"allow", b"POST"),)
SIGN_IN = ((b"www-authenticate", b"Bearer"),)
LEAVING = ((b"connection", b"close"),)
LAST_WORD_SECONDS = 0.5
LEAVING_SECONDS = 0.003  # between two who are sent away

Extra = tuple[tuple[bytes, bytes], ...]


class NotServed(BadUserInput):
    """A request that HTTP itself has a status for."""

    def __init__(self, status: int, message: str, headers: Extra = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class BodyTooLarge(NotServed):
    """Refused while it is still arriving. The server reads the rest past us, so that the client hears the answer."""

    code = CostExceeded.code

    def __init__(self, most: int) -> None:
        super().__init__(413, f"The body is too large; at most {most} bytes are allowed.")


class ClientGone(Exception):
    """The client left before its request was complete."""


class Endpoint:
    """The ASGI application of /graphql; one serves all connections of a process."""

    def __init__(
        self,
        schema: strawberry.Schema,
        *,
        settings: Settings,
        authenticate: Authenticate,
        make_context: MakeContext,
        until_revoked: UntilRevoked,
        origins: Callable[[str], bool],
        observe: Observe | None = None,
    ) -> None:
        self._settings = settings
        self._access = Access(authenticate, until_revoked, origins, Room(settings))
        self._answers = Answers(schema, settings, make_context, observe)
        self._open: set[Socket | EventStream] = set()
        self._draining = False

    @property
    def connections(self) -> int:
        """Sockets and event streams that are open."""
        return len(self._open)

    def drain(self) -> float:
        """Send away sockets and streams, those open and those to come, so that they resume elsewhere.

        Those open leave one after the other, lest all stand before the next replica in one moment. Returns how many
        seconds it takes to tell them.
        """
        self._draining = True
        loop, leaving = asyncio.get_running_loop(), list(self._open)
        pause = min(LEAVING_SECONDS, self._settings.drain_seconds / 2 / max(1, len(leaving)))
        for number, connection in enumerate(leaving):
            loop.call_later(number * pause, self._send_away, connection)
        return len(leaving) * pause

    def _send_away(self, connection: Socket | EventStream) -> None:
        if connection in self._open:
            connection.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._run(Socket(self._access, self._answers, self._settings, scope, receive, send))
        else:
            await self._http(scope, receive, send)

    async def _run(self, connection: Socket | EventStream) -> None:
        self._open.add(connection)
        if self._draining:
            connection.drain()
        try:
            await connection.run()
        finally:
            self._open.discard(connection)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        exchange = Exchange(scope, receive, send, headers, request_id_of(scope))
        try:
            await self._serve(exchange)
        except ClientGone:
            return
        except NotServed as error:
            await exchange.reply(refusal(error, exchange.whose), error.status, error.headers)
        except asyncio.CancelledError:
            if not self._draining:
                raise
            await self._cut_off(exchange)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it was, the client gets an answer
            answer = refusal(error, exchange.whose)
            status = 503 if isinstance(error, Unavailable) else _status(answer)
            await exchange.reply(answer, status, SIGN_IN if status == 401 else ())

    async def _cut_off(self, exchange: "Exchange") -> None:
        """The last word to who still waits when the time to drain is over. It is short: they may not be reading."""
        if exchange.answered:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await exchange.reply(refusal(Unavailable("The server is restarting."), exchange.whose), 503, LEAVING)

    async def _serve(self, exchange: "Exchange") -> None:
        if exchange.method not in {"GET", "POST"}:
            raise NotServed(405, "GraphQL is served by GET and POST.", ALLOW_BOTH)
        exchange.negotiate()
        principal = await self._access.authenticate(self._access.from_headers(exchange.headers))
        try:
            async with asyncio.timeout(self._settings.query_seconds):
                payload = await exchange.payload(self._settings.body_bytes)
        except TimeoutError:
            raise NotServed(408, "The body took too long to arrive.") from None
        request = read(payload)
        try:
            operation = self._answers.prepare(request, principal)
        except (Refused, RequestError) as error:
            await self._say(exchange, refusal(error, exchange.whose))
            return
        await self._execute(exchange, operation, request, principal)

    async def _execute(self, exchange: "Exchange", operation: Operation, request: Request, who: Principal) -> None:
        if exchange.method == "GET" and operation.kind is OperationType.MUTATION:
            raise NotServed(405, "Mutations are served by POST only.", ALLOW_POST)
        caller = exchange.caller(who)
        if operation.kind is not OperationType.SUBSCRIPTION:
            await self._say(exchange, await self._answers.answer(operation, request, caller))
        elif exchange.streams:
            answers, ended = self._answers.stream(operation, request, caller), partial(self._access.ended, who)
            receive, send, abort = exchange.receive, exchange.send, exchange.abort
            stream = EventStream(receive, send, answers, ended, exchange.whose, abort=abort)
            with self._access.room.place(who):
                exchange.answered = True
                await self._run(stream)
        else:
            raise NotServed(406, f"Subscriptions are served over WebSocket, or to those who accept {EVENT_STREAM}.")

    async def _say(self, exchange: "Exchange", answer: Answer) -> None:
        status = _status(answer)
        if exchange.media == EVENT_STREAM:
            await exchange.write(200, EVENT_STREAM, single(answer))
        else:
            # A client of before application/graphql-response+json takes any status but 200 for a broken connection.
            await exchange.reply(answer, 200 if status == 400 and exchange.media == JSON else status)


class Exchange:
    """One HTTP request and the means to answer it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, headers: Headers, request_id: str) -> None:
        self.method: str = scope["method"]
        self.query_string: bytes = scope["query_string"]
        self.receive, self.send = receive, send
        self.abort: Abort | None = scope.get("extensions", {}).get(ABORT, {}).get("abort")
        self.headers = headers
        self.whose = Whose(request_id)
        self.media = JSON
        self.streams = False
        self.answered = False

    def negotiate(self) -> None:
        media, self.streams = negotiate(self.headers.get(b"accept", b""))
        if media is None:
            raise NotServed(406, f"Answers are {JSON}, application/graphql-response+json or {EVENT_STREAM}.")
        self.media = media

    def caller(self, principal: Principal) -> Caller:
        last_event = self.headers.get(b"last-event-id")
        return Caller(
            principal,
            self.whose.request_id,
            resume_after=last_event.decode("latin-1") if last_event else None,
            wants_cost=b"omoi-cost" in self.headers,
        )

    async def payload(self, most: int) -> object:
        if self.method == "GET":
            return _from_query(self.query_string)
        if not is_json(self.headers.get(b"content-type", b"")):
            raise NotServed(415, "The body must be application/json in UTF-8.")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise NotServed(415, "The body must not be compressed.")
        return _json(await self._body(most))

    async def _body(self, most: int) -> bytes:
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > most):
            raise BodyTooLarge(most)
        parts: list[bytes] = []
        more, size = True, 0
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            more, size = message.get("more_body", False), size + len(parts[-1])
            if size > most:
                raise BodyTooLarge(most)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def reply(self, answer: Answer, status: int, headers: Extra = ()) -> None:
        await self.write(status, JSON if self.media == EVENT_STREAM else self.media, answer.body, headers)

    async def write(self, status: int, media: str, body: bytes, headers: Extra = ()) -> None:
        fixed = (
            (b"content-type", f"{media}; charset=utf-8".encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        )
        self.answered = True
        await self.send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
        await self.send({"type": "http.response.body", "body": body})


def _status(answer: Answer) -> int:
    return STATUSES.get(answer.errors[0]["extensions"]["code"], 400) if answer.errors else 200


def _json(text: bytes | str) -> object:
    try:
        return wire.decode(text)
    except wire.NotJson as error:
        raise BadUserInput(str(error)) from None


def _from_query(query_string: bytes) -> object:
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise BadUserInput("The query string is not UTF-8, or has too many parts.") from None
    payload: dict[str, object] = dict(pairs)
    for key in ("variables", "extensions"):
        if key in payload:
            payload[key] = _json(str(payload[key]) or "null")
    return payload
