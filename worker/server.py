"""How the worker speaks to the server: GraphQL over HTTP, blobs, the inbox, and the passwords that git asks for."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

TIMEOUT_SECONDS = 30.0
PATIENCE_SECONDS = 1500.0  # of a git that wants a password
PATIENT = httpx.Timeout(TIMEOUT_SECONDS, read=90.0)  # an inbox on which for so long nothing comes is opened again
PAUSES_SECONDS = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
LONGEST_PAUSE_SECONDS = 10.0
OVER = {"UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND", "BAD_USER_INPUT", "COST_EXCEEDED"}

REPORT = """mutation($input: ReportEventsInput!) { reportEvents(input: $input) {
  acceptedThrough desiredState pendingMessages { id kind body author authorKind } errors { message code } } }"""
ACKNOWLEDGE = "mutation($input: AcknowledgeMessagesInput!) { acknowledgeMessages(input: $input) { desiredState } }"
FINISH = "mutation($input: FinishSandboxInput!) { finishSandbox(input: $input) { desiredState } }"
ISSUE = "mutation($input: IssueGitCredentialInput!) { issueGitCredential(input: $input) { username password } }"
INBOX = "subscription { workerInbox { messages { id kind body author authorKind } desiredState } }"


class Over(Exception):
    """The attempt has ended, or the server will never take what it was told: nothing that the worker does counts."""


class Unreachable(Exception):
    """No answer this time. The server may have said how many seconds to wait."""

    def __init__(self, why: str, retry_after: Any = None) -> None:
        super().__init__(why)
        self.retry_after = float(retry_after) if str(retry_after).replace(".", "", 1).isdecimal() else 0.0


class Server:
    """Whatever is asked of it ends in an answer, or in Over or Unreachable."""

    def __init__(self, url: str, token: str, http: httpx.AsyncClient) -> None:
        self._url, self._http = url, http
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json"}

    async def ask(self, document: str, given: dict[str, Any]) -> dict[str, Any]:
        """The payload of a mutation's only field."""
        body = {"query": document, "variables": {"input": given}}
        with _reaching():
            response = await self._http.post(f"{self._url}/graphql", json=body, headers=self._headers)
            return _payload(response.json())

    async def put_blob(self, name: str, zipped: bytes) -> None:
        headers = self._headers | {"content-encoding": "gzip", "content-type": "application/octet-stream"}
        with _reaching():
            response = await self._http.put(f"{self._url}/blobs/{name}", content=zipped, headers=headers)
        if response.is_server_error or response.status_code in (408, 429):
            raise Unreachable(f"HTTP {response.status_code}", response.headers.get("retry-after"))
        if not response.is_success:
            raise Over(f"A blob was refused: HTTP {response.status_code}")

    async def inbox(self) -> AsyncIterator[dict[str, Any]]:
        """What the inbox says until its connection ends."""
        headers = self._headers | {"accept": "text/event-stream"}
        url, body = f"{self._url}/graphql", {"query": INBOX}
        with _reaching():
            async with self._http.stream("POST", url, json=body, headers=headers, timeout=PATIENT) as response:
                if "text/event-stream" not in response.headers.get("content-type", ""):
                    _payload(json.loads(await response.aread()))
                async for line in response.aiter_lines():
                    field, _, value = line.partition(":")
                    if field == "data" and value.strip():
                        yield _payload(json.loads(value))


def pauses() -> Iterator[float]:
    """How long to wait before each next attempt, for ever."""
    for pause in itertools.chain(PAUSES_SECONDS, itertools.repeat(LONGEST_PAUSE_SECONDS)):
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads workers, guards nothing


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, ValueError) as error:
        raise Unreachable(type(error).__name__) from error


def _payload(answer: Any) -> dict[str, Any]:
    match answer:
        case {"errors": [error, *_]}:
            extensions = error.get("extensions") or {}
            code, message = extensions.get("code"), error.get("message")
            raise Over(f"{code}: {message}") if code in OVER else Unreachable(message, extensions.get("retryAfter"))
        case {"data": {**fields}} if isinstance(payload := next(iter(fields.values()), None), dict):
            return payload
    raise Unreachable("an answer without data")


async def credential(asked: str, environ: Mapping[str, str]) -> str:
    """What git shall read: nothing for any host but the repository's. Over or TimeoutError is nothing to it too."""
    wanted = dict(line.partition("=")[::2] for line in asked.splitlines())
    address = urlsplit(environ.get("REPO_URL", ""))
    if (wanted.get("protocol"), wanted.get("host")) != (address.scheme, address.netloc.rpartition("@")[2]):
        return ""
    async with httpx.AsyncClient() as http, asyncio.timeout(PATIENCE_SECONDS):
        server = Server(environ["CALLBACK_URL"], environ["OMOI_SANDBOX_TOKEN"], http)
        for pause in pauses():
            with contextlib.suppress(Unreachable):
                issued = await server.ask(ISSUE, {"operation": environ.get("OMOI_GIT_OPERATION", "FETCH")})
                break
            await asyncio.sleep(pause)
    return "".join(f"{key}={issued[key]}\n" for key in ("username", "password") if issued["username"])


if __name__ == "__main__" and sys.argv[1:] == ["get"]:
    sys.stdout.write(asyncio.run(credential(sys.stdin.read(), os.environ)))
