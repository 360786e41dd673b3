"""How the worker speaks to the server: GraphQL over HTTP, blobs, and the inbox as server-sent events."""

import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

TIMEOUT_SECONDS = 30.0
SILENCE_SECONDS = 90.0  # an inbox on which not even a comment comes for so long is opened again
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
OVER = {"UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND"}
REFUSED = {"BAD_USER_INPUT", "COST_EXCEEDED"}

REPORT = """mutation($input: ReportEventsInput!) { reportEvents(input: $input) {
  acceptedThrough desiredState pendingMessages { id kind body author authorKind } errors { message code } } }"""
ACKNOWLEDGE = """mutation($input: AcknowledgeMessagesInput!) {
  acknowledgeMessages(input: $input) { desiredState errors { message code } } }"""
FINISH = """mutation($input: FinishSandboxInput!) {
  finishSandbox(input: $input) { desiredState errors { message code } } }"""
ISSUE = """mutation($input: IssueGitCredentialInput!) {
  issueGitCredential(input: $input) { username password errors { message code } } }"""
INBOX = "subscription { workerInbox { messages { id kind body author authorKind } desiredState } }"


class Over(Exception):
    """The server says that this attempt has ended: nothing that the worker does counts any more."""


class Refused(Exception):
    """The server will not take this, however often it is sent."""


class Unreachable(Exception):
    """No answer this time. The server may have said how many seconds to wait."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class Server:
    def __init__(self, url: str, token: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json"}

    async def ask(self, document: str, given: dict[str, Any]) -> dict[str, Any]:
        """The payload of a mutation's only field, or Over, Refused, Unreachable."""
        try:
            body = {"query": document, "variables": {"input": given}}
            response = await self._http.post(f"{self._url}/graphql", json=body, headers=self._headers)
            return _payload(response.json())
        except (httpx.HTTPError, ValueError) as error:
            raise Unreachable(type(error).__name__) from error

    async def put_blob(self, name: str, zipped: bytes) -> None:
        headers = self._headers | {"content-encoding": "gzip", "content-type": "application/octet-stream"}
        try:
            response = await self._http.put(f"{self._url}/blobs/{name}", content=zipped, headers=headers)
        except httpx.HTTPError as error:
            raise Unreachable(type(error).__name__) from error
        if response.status_code in (401, 403, 404):
            raise Over(f"HTTP {response.status_code}")
        if response.status_code in (400, 413, 415, 422):
            raise Refused(f"HTTP {response.status_code}")
        if not response.is_success:
            raise Unreachable(f"HTTP {response.status_code}", _seconds(response.headers.get("retry-after")))

    async def inbox(self) -> AsyncIterator[dict[str, Any]]:
        """What the inbox says until its connection ends."""
        headers = self._headers | {"accept": "text/event-stream"}
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=SILENCE_SECONDS)
        try:
            async with self._http.stream(
                "POST", f"{self._url}/graphql", json={"query": INBOX}, headers=headers, timeout=timeout
            ) as response:
                if "text/event-stream" not in response.headers.get("content-type", ""):
                    _payload(json.loads(await response.aread()))
                    return
                async for line in response.aiter_lines():
                    field, _, value = line.partition(":")
                    if field == "data" and value.strip():
                        yield _payload(json.loads(value))
        except (httpx.HTTPError, ValueError) as error:
            raise Unreachable(type(error).__name__) from error


def pauses() -> Iterator[float]:
    """How long to wait before each next attempt."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads workers, guards nothing
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _payload(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise Unreachable("an answer that is no object")
    for error in answer.get("errors") or ():
        extensions = error.get("extensions") or {}
        code, message = str(extensions.get("code")), str(error.get("message"))
        if code in OVER:
            raise Over(code)
        if code in REFUSED:
            raise Refused(message)
        raise Unreachable(f"{code}: {message}", _seconds(extensions.get("retryAfter")))
    for payload in (answer.get("data") or {}).values():
        if isinstance(payload, dict):
            return payload
    raise Unreachable("an answer without data")


def _seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None
