"""What every answer gets on its way: a request id, security headers, one count, and a log line where that is wanted."""

import re
import secrets
import time
from collections.abc import Mapping

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
REQUEST_ID_BYTES = 9
DEFAULTS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")

log = structlog.get_logger()


class Metrics:
    """Counted in this process, told at /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("omoi_http_requests", "HTTP answers.", ["status"], registry=self.registry)
        self.operations = Counter(
            "omoi_graphql_operations", "Finished operations.", ["kind", "outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "omoi_graphql_operation_seconds", "Time that operations took.", ["kind"], registry=self.registry
        )
        self.connections = Gauge("omoi_graphql_connections", "Open sockets and streams.", registry=self.registry)
        self.listeners = Gauge("omoi_bus_listeners", "Streams that wait for a ring.", registry=self.registry)
        self.pool = Gauge("omoi_database_connections_used", "Connections to Postgres in use.", registry=self.registry)

    def observe(self, *, kind: str, outcome: str, seconds: float, **_: object) -> None:
        """One finished operation. Its name is the client's to choose, so it is no label."""
        self.operations.labels(kind, outcome).inc()
        self.seconds.labels(kind).observe(seconds)


class Edge:
    """The outermost layer. It adds what is missing and overrides nothing that a page has set for itself."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, access_log: bool, https: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log
        headers: Mapping[str, str] = DEFAULTS
        if https:
            headers = {**DEFAULTS, "strict-transport-security": "max-age=31536000"}
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.close" and not status:  # refused before it was accepted
                await answer({"type": "websocket.http.response.start", "status": 403})
                message = {"type": "websocket.http.response.body", "body": b""}
            elif message["type"] in STARTS:
                status = message.get("status", 101)
                self._finish(message, request_id)
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            if scope["type"] == "http":
                self._metrics.requests.labels(str(status)).inc()
            if self._access_log:
                milliseconds = round((time.perf_counter() - started) * 1000, 1)
                log.info(
                    "request_served",
                    request_id=request_id,
                    method=scope.get("method", scope["type"]),
                    path=scope["path"],
                    status=status,
                    milliseconds=milliseconds,
                )

    def _finish(self, message: Message, request_id: str) -> None:
        present = {name.lower() for name, _ in message.get("headers", ())}
        missing = [header for header in self._headers if header[0] not in present]
        message["headers"] = [*message.get("headers", ()), *missing, (b"x-request-id", request_id.encode())]


def _request_id(scope: Scope) -> str:
    """The caller's own id for the request when it is a harmless one, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return secrets.token_urlsafe(REQUEST_ID_BYTES)
