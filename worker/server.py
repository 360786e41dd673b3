"""How the worker speaks to the server: GraphQL over HTTP, blobs, the inbox, and the passwords that git asks for."""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

TIMEOUT_SECONDS = 30.0
PATIENCE_SECONDS = 1500.0  # so long may the server be away while git needs it
PATIENT = httpx.Timeout(TIMEOUT_SECONDS, read=90.0)  # an inbox on which for so long nothing comes is opened again
OVER = {"UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND"}
REFUSED = {"BAD_USER_INPUT", "COST_EXCEEDED", "LIMIT_REACHED", 413}  # as a proxy before the server says it

REPORT = """mutation($input: ReportEventsInput!) { reportEvents(input: $input) {
  acceptedThrough desiredState pendingMessages { id kind body author authorKind } errors { message code } } }"""
ACKNOWLEDGE = "mutation($input: AcknowledgeMessagesInput!) { acknowledgeMessages(input: $input) { desiredState } }"
FINISH = "mutation($input: FinishSandboxInput!) { finishSandbox(input: $input) { desiredState } }"
ISSUE = "mutation($input: IssueGitCredentialInput!) { issueGitCredential(input: $input) { username password } }"
INBOX = "subscription { workerInbox { messages { id kind body author authorKind } desiredState } }"


class Over(Exception):
    """The attempt has ended: nothing that the worker does counts."""


class Refused(Over):
    """The server will never take this. An attempt that cannot do without it is over."""


class Unreachable(Exception):
    """No answer this time. The server may have said how many seconds to wait."""

    def __init__(self, why: str, retry_after: Any = None) -> None:
        super().__init__(why)
        self.retry_after = float(retry_after) if str(retry_after).replace(".", "", 1).isdecimal() else 0.0


class Server:
    """Whatever is asked of it ends in an answer, or in Over, Refused, Unreachable or an HTTPError."""

    def __init__(self, url: str, token: str, http: httpx.AsyncClient) -> None:
        self._url, self._http = url, http
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json"}

    async def ask(self, document: str, given: dict[str, Any]) -> dict[str, Any]:
        body = {"query": document, "variables": {"input": given}}
        response = await self._http.post(f"{self._url}/graphql", json=body, headers=self._headers)
        return _payload(response, response.text)

    async def put_blob(self, name: str, zipped: bytes) -> None:
        headers = self._headers | {"content-encoding": "gzip", "content-type": "application/octet-stream"}
        response = await self._http.put(f"{self._url}/blobs/{name}", content=zipped, headers=headers)
        if not response.is_success:
            _payload(response, response.text)

    async def inbox(self) -> AsyncIterator[dict[str, Any]]:
        headers = self._headers | {"accept": "text/event-stream"}
        url, body = f"{self._url}/graphql", {"query": INBOX}
        async with self._http.stream("POST", url, json=body, headers=headers, timeout=PATIENT) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                _payload(response, (await response.aread()).decode("utf-8", "replace"))
            async for line in response.aiter_lines():
                field, _, value = line.partition(":")
                if field == "data" and value.strip():
                    yield _payload(response, value)


def pauses(longest_seconds: float = 10.0) -> Iterator[float]:
    pause = 0.2
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads workers, guards nothing
        pause = min(2 * pause, longest_seconds)


async def insist(ask: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """Its answer, however long the server is away or wants to be left alone. Raises Over."""
    attempts = pauses()
    while True:
        try:
            return await ask(*given)
        except (Unreachable, httpx.HTTPError) as error:
            await asyncio.sleep(next(attempts) + getattr(error, "retry_after", 0))


def _payload(response: httpx.Response, said: str) -> dict[str, Any]:
    """What an answer's only field holds. Whatever else was said is raised as what it means for who asked."""
    status, later = response.status_code, response.headers.get("retry-after")
    code, why, answer = None, f"HTTP {status} without data", None
    with contextlib.suppress(ValueError):
        answer = json.loads(said)
    match answer:
        case {"data": {**fields}} if isinstance(payload := next(iter(fields.values()), None), dict):
            return payload
        case {"errors": [{"message": why, "extensions": {"code": code, **more}}, *_]}:
            later = more.get("retryAfter", later)
    if code in OVER:
        raise Over(f"{code}: {why}")
    final = (code or status) in REFUSED and status != httpx.codes.REQUEST_TIMEOUT
    raise Refused(str(why)[:500]) if final else Unreachable(why, later)


async def credential(asked: str, environ: Mapping[str, str]) -> str:
    """What git shall read: nothing for any host but the repository's. Over or TimeoutError is nothing to it too."""
    wanted = dict(line.partition("=")[::2] for line in asked.splitlines())
    address = urlsplit(environ.get("REPO_URL", ""))
    if (wanted.get("protocol"), wanted.get("host")) != (address.scheme, address.netloc.rpartition("@")[2]):
        return ""
    async with httpx.AsyncClient() as http, asyncio.timeout(PATIENCE_SECONDS):
        server = Server(environ["CALLBACK_URL"], environ["OMOI_SANDBOX_TOKEN"], http)
        issued = await insist(server.ask, ISSUE, {"operation": environ.get("OMOI_GIT_OPERATION", "FETCH")})
    return "".join(f"{key}={issued[key]}\n" for key in ("username", "password") if issued["username"])


if __name__ == "__main__" and sys.argv[1:] == ["get"]:
    sys.stdout.write(asyncio.run(credential(sys.stdin.read(), os.environ)))
