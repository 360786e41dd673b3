"""A client of the GraphQL API, as any other: queries over HTTP, live streams over SSE, both patient with a restart."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from app.errors import AppError

ANSWER_SECONDS = 30.0
PATIENCE_SECONDS = 60.0  # with a server that is away
PAUSE_SECONDS = 0.3


class ServerAway(AppError):
    """Nobody answers at the address."""


class Refused(AppError):
    """The server answered, and said no."""


class Client:
    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"},
            timeout=ANSWER_SECONDS,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, document: str, **variables: Any) -> Any:
        """The data of an operation. A server that restarts is waited for; a mutation needs its idempotency key."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self._ask(document, variables)
            except (httpx.TransportError, ServerAway) as error:
                if time.monotonic() > until:
                    raise ServerAway(f"The server at {self.url} does not answer: {error}") from error
            await asyncio.sleep(PAUSE_SECONDS)

    async def follow(self, document: str, **variables: Any) -> AsyncIterator[Any]:
        """The payloads of a subscription whose root field has a `cursor`; after a break it goes on behind the last."""
        while True:
            with contextlib.suppress(httpx.TransportError, ServerAway):
                async for payload in self._follow(document, variables):
                    variables["after"] = payload["cursor"]
                    yield payload
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, document: str, variables: dict[str, Any]) -> Any:
        answer = await self._http.post("/graphql", json={"query": document, "variables": variables})
        return _data(_read(answer, answer.content))

    async def _follow(self, document: str, variables: dict[str, Any]) -> AsyncIterator[Any]:
        headers = {"accept": "text/event-stream"}
        body = {"query": document, "variables": variables}
        timeout = httpx.Timeout(ANSWER_SECONDS, read=None)
        async with self._http.stream("POST", "/graphql", json=body, headers=headers, timeout=timeout) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                _data(_read(answer, await answer.aread()))
                raise Refused(f"The server at {self.url} sends no event stream.")
            async for line in answer.aiter_lines():
                if line.startswith("data:") and (said := line[5:].strip()):
                    yield next(iter(_data(json.loads(said)).values()))


def _read(answer: httpx.Response, content: bytes) -> Any:
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise ServerAway(f"it answered {answer.status_code}")
    try:
        return json.loads(content)
    except ValueError as error:
        raise Refused(f"{answer.url} is no GraphQL API: it answered {answer.status_code} without JSON.") from error


def _data(answer: Any) -> Any:
    if errors := answer.get("errors"):
        raise Refused("; ".join(error["message"] for error in errors))
    return answer["data"]
