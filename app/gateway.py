"""The model's door for sandboxes: their token in, the real key out, answers streamed through, and usage counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

import httpx
import orjson
import structlog
from starlette.types import Receive, Scope, Send

from app import admission
from app.auth import Credentials, Principal
from app.bodies import Body, ClientGone
from app.bus import Bus
from app.db import Database
from app.enums import PrincipalKind
from app.errors import AppError, BudgetExhausted, Forbidden, Unavailable
from app.ledger import Ledger
from app.secrets import Keys
from app.upstream import Headers, Upstream, answer_headers

MESSAGES, COUNT, HELLO = "v1/messages", "v1/messages/count_tokens", "api/hello"
BODY_BYTES = 32 << 20  # as the model's own API
OF_A_SANDBOX = 8  # calls at once
TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=10)
LIMITS = httpx.Limits(max_connections=2_000, max_keepalive_connections=200, keepalive_expiry=60)
FINAL = {b"x-should-retry": b"false"}  # the agent's program obeys it, and asks for twelve minutes without it
BROKEN = "The model's answer broke off."

Authenticate = Callable[[Credentials], Awaitable[Principal]]

log = structlog.get_logger()


class Refused(AppError):
    """An answer in the model's place, in the shape that its API has for errors."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[bytes, bytes] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}

    @property
    def body(self) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": self.kind, "message": self.message}})


class Gateway:
    """The ASGI application behind /model."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        db: Database,
        bus: Bus,
        keys: Keys,
        authenticate: Authenticate,
        allow_unisolated: bool,
    ) -> None:
        self.upstream = upstream
        self._db = db
        self._keys = keys
        self._authenticate = authenticate
        self._allow_unisolated = allow_unisolated
        self._ledger = Ledger(db, bus)
        self._client: httpx.AsyncClient | None = None
        self._open: Counter[UUID] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Calls are forwarded in here. At its end what was used is written down, as far as the time allows."""
        client = httpx.AsyncClient(timeout=TIMEOUT, limits=LIMITS, trust_env=False)
        async with self._ledger.running(), client as self._client:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send)
        try:
            await self._serve(call)
        except ClientGone:
            return
        except TimeoutError:
            await call.refuse(Refused(408, "timeout_error", "The request took too long to arrive."))
        except AppError as error:
            await call.refuse(_refusal(error))

    async def _serve(self, call: "Call") -> None:
        if call.path == HELLO and call.method in {"GET", "HEAD"}:
            await call.say(200, b"{}" if call.method == "GET" else b"")
            return
        principal = await self._authenticate(Credentials(bearer=call.token))
        if principal.kind is not PrincipalKind.SANDBOX:
            raise Forbidden("Only a sandbox's token opens the model gateway.")
        if call.method != "POST" or call.path not in {MESSAGES, COUNT}:
            raise Refused(404, "not_found_error", "The gateway serves POST /v1/messages.", FINAL)
        with self._room(principal.id):
            secret = await self._admit(principal.id)
            url = self.upstream.address(call.path, call.query, secret)
            await self._relay(call, principal.id, url, self.upstream.request_headers(call.headers, secret))

    @contextmanager
    def _room(self, sandbox_id: UUID) -> Iterator[None]:
        if self._open[sandbox_id] >= OF_A_SANDBOX:
            message = f"A sandbox has {OF_A_SANDBOX} calls of the model at once."
            raise Refused(429, "rate_limit_error", message, {b"retry-after": b"1"})
        self._open[sandbox_id] += 1
        try:
            yield
        finally:
            self._open -= Counter([sandbox_id])  # who has none left is dropped

    async def _admit(self, sandbox_id: UUID) -> str | None:
        async with self._db.writing() as session:
            return await admission.admit(
                session,
                sandbox_id,
                keys=self._keys,
                upstream=self.upstream,
                allow_unisolated=self._allow_unisolated,
            )

    async def _relay(self, call: "Call", sandbox_id: UUID, url: str, headers: Headers) -> None:
        """Until the answer is complete, or its client leaves: then nobody pays for the rest of it."""
        forwarding = asyncio.create_task(self._forward(call, sandbox_id, url, headers))
        leaving = asyncio.create_task(call.body.left())
        try:
            await asyncio.wait({forwarding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if forwarding.done():
                forwarding.result()
        finally:
            forwarding.cancel()
            leaving.cancel()
            await asyncio.gather(forwarding, leaving, return_exceptions=True)

    async def _forward(self, call: "Call", sandbox_id: UUID, url: str, headers: Headers) -> None:
        assert self._client is not None
        request = self._client.build_request("POST", url, headers=headers, content=call.content())
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            log.warning("model_unreachable", error=type(error).__name__)
            raise Refused(502, "overloaded_error", "The model cannot be reached right now.") from error
        tab = self._ledger.open(sandbox_id)
        try:
            final = FINAL.items() if response.status_code in {401, 403} else ()
            await call.start(response.status_code, [*answer_headers(response.headers.raw), *final])
            async for chunk in response.aiter_raw():
                tab.feed(chunk)
                await call.write(chunk)
            call.broken = call.streams and not tab.meter.ended  # also where a proxy ended it properly
        except httpx.TransportError as error:
            log.warning("model_broke_off", error=type(error).__name__)
            call.broken = True
        finally:
            try:
                await response.aclose()
            finally:
                await tab.close()
        await call.end()


class Call:
    """One request of an agent, and the answer to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path_params"]["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Headers = list(scope["headers"])
        self.body = Body(receive)
        self.broken = False  # the answer ended before it was complete
        self._send = send
        self._started = False
        self.streams = False  # the answer is one of events
        self._tail = b""

    @property
    def token(self) -> str | None:
        named = dict(self.headers)
        if key := named.get(b"x-api-key"):
            return key.decode("latin-1")
        scheme, _, token = named.get(b"authorization", b"").decode("latin-1").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    async def content(self) -> AsyncIterator[bytes]:
        """The body as it arrives; refused as soon as it is larger than any that the model takes."""
        size = 0
        while (chunk := await self.body.chunk()) is not None:
            size += len(chunk)
            if size > BODY_BYTES:
                raise Refused(413, "request_too_large", f"A request has {BODY_BYTES} bytes at most.", FINAL)
            if chunk:
                yield chunk

    async def start(self, status: int, headers: Headers) -> None:
        self._started = True
        self.streams = dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-2:]
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """Between two events a break can be told, as the model's API does; elsewhere the connection breaks too."""
        if self.broken:
            if not self.streams or self._tail not in {b"", b"\n\n"}:
                return
            await self.write(b"event: error\ndata: " + Refused(502, "overloaded_error", BROKEN).body + b"\n\n")
        await self._send({"type": "http.response.body"})

    async def say(self, status: int, body: bytes, headers: Mapping[bytes, bytes] | None = None) -> None:
        fixed = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
        await self.start(status, list({**fixed, **(headers or {})}.items()))
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: Refused) -> None:
        if not self._started:
            await self.say(refusal.status, refusal.body, refusal.headers)


def _refusal(error: AppError) -> Refused:
    """Whatever was refused, as the model's own API would say it."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, BudgetExhausted):  # of all statuses the one after which the agent's program asks only once
        return Refused(402, "billing_error", f"{error.code}: {error.message}", FINAL)
    if isinstance(error, Unavailable):
        return Refused(503, "overloaded_error", error.message)
    if isinstance(error, Forbidden):
        return Refused(403, "permission_error", error.message, FINAL)
    return Refused(401, "authentication_error", error.message, FINAL)
