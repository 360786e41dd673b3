"""One GraphQL request, whichever transport brought it: from the parsed JSON to the bytes of its answer."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import strawberry
from graphql import ExecutionResult

from app import auth
from app.auth import Principal
from app.errors import BadUserInput
from app.settings import Settings
from resolvers.live import Live
from schema import documents, wire
from schema.errors import Refused, Whose, entries, present
from schema.execution import Context, Documents, Execution, Operation
from schema.hub import Hub, Offer, Room
from schema.wire import Answer

MakeContext = Callable[..., Any]
Observe = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Request:
    query: str | None
    name: str | None
    variables: dict[str, Any] | None
    document_id: str | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and how the answer is to be told apart from others."""

    principal: Principal
    request_id: str
    resume_after: str | None = None
    wants_cost: bool = False


def read(payload: object) -> Request:
    """Check the shape of a request. Every wrong type is refused by the name of its key."""
    if not isinstance(payload, dict):
        raise BadUserInput("The request must be one JSON object; batches are not accepted.")
    query, name = _string(payload, "query"), _string(payload, "operationName")
    variables, extensions = _object(payload, "variables"), _object(payload, "extensions")
    document_id = _string(payload, "documentId")
    if extensions and (persisted := _object(extensions, "persistedQuery")):
        document_id = document_id or _string(persisted, "sha256Hash")
    if not query and not document_id:
        raise BadUserInput("The request has neither `query` nor `documentId`.")
    return Request(query or None, name, variables, document_id)


def _string(payload: dict[str, Any], key: str) -> str | None:
    value = payload.get(key)
    if value is None or isinstance(value, str):
        return value
    raise BadUserInput(f"`{key}` must be a string.")


def _object(payload: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = payload.get(key)
    if value is None or isinstance(value, dict):
        return value
    raise BadUserInput(f"`{key}` must be an object.")


def _never(_answer: Answer) -> bool:
    return False


class Answers:
    def __init__(
        self, schema: strawberry.Schema, settings: Settings, make_context: MakeContext, observe: Observe | None
    ) -> None:
        # Strawberry has no public name for the graphql-core schema that it builds; its version is pinned.
        graph = schema._schema  # noqa: SLF001
        self._settings = settings
        self._documents = Documents(graph, settings)
        self._trusted = documents.load(settings)
        self._execution = Execution(graph, settings)
        self._hub = Hub(Room(answers=settings.mailbox_answers, size=settings.mailbox_bytes))
        self._make_context = make_context
        self._observe = observe

    def prepare(self, request: Request, principal: Principal) -> Operation:
        """The operation to execute. Raises Refused or a RequestError; nothing has been executed then."""
        text = self._trusted.text(request.query, request.document_id, principal)
        return self._documents.operation(text, request.name)

    async def answer(self, operation: Operation, request: Request, caller: Caller) -> Answer:
        """Execute a query or mutation. Whatever goes wrong is in the answer."""
        started = time.perf_counter() if self._observe else 0.0
        whose = Whose(caller.request_id, operation.name, operation.sha256)
        try:
            result = await self._execution.run(operation, request.variables, self._context(caller))
            cost = self._cost(operation, request) if caller.wants_cost else None
            answer, outcome = _executed(result, whose, cost), "errors" if result.errors else "ok"
        except Exception as error:  # noqa: BLE001 - the edge: a refusal, or a fault that is logged and masked
            answer, outcome = refusal(error, whose), "refused"
        if self._observe:
            self._observed(operation, outcome, started)
        return answer

    async def stream(
        self, operation: Operation, request: Request, caller: Caller, offer: Offer = _never
    ) -> AsyncGenerator[Answer, None]:
        """Execute a subscription. It ends when its source does, or with one last answer that says what went wrong.

        While nothing is on its way to the client, answers may be offered; what was sent so is not yielded.
        """
        started = time.perf_counter() if self._observe else 0.0
        whose = Whose(caller.request_id, operation.name, operation.sha256)
        outcome = "ok"
        try:
            source = await self._execution.open(operation, request.variables, self._context(caller))
            if operation.shared and isinstance(source, Live):
                following = self._together(source, operation, request, caller, offer)
            else:
                following = self._alone(source, operation, request, caller)
            async with aclosing(following) as answers:
                async for answer in answers:
                    yield answer
        except Exception as error:  # noqa: BLE001 - the edge: a refusal, or a fault that is logged and masked
            outcome = "refused" if isinstance(error, Refused) else "errors"
            yield refusal(error, whose)
        finally:
            if self._observe:
                self._observed(operation, outcome, started)

    def _together(
        self, source: Live, operation: Operation, request: Request, caller: Caller, offer: Offer
    ) -> AsyncGenerator[Answer, None]:
        """What is told is the same for all who ask this, so that it is made in the name of nobody."""
        given = {name: value for name, value in (request.variables or {}).items() if name != operation.cursor_variable}
        document = (operation.sha256, operation.name, wire.encode(sorted(given.items())))
        anybody = Caller(auth.NOBODY, caller.request_id)
        return self._hub.follow(source, document, partial(self._event, operation, request, anybody), offer)

    async def _alone(
        self, source: AsyncIterable[Any], operation: Operation, request: Request, caller: Caller
    ) -> AsyncGenerator[Answer, None]:
        events = source.__aiter__()
        try:
            async for event in events:
                yield await self._event(operation, request, caller, event)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _event(self, operation: Operation, request: Request, caller: Caller, event: Any) -> Answer:
        """The cursor is the source's, whether or not the client selected it. What cannot be told is raised instead."""
        make_context = partial(self._context, caller)
        result = await self._execution.event(operation, request.variables, make_context, event)
        whose = Whose(caller.request_id, operation.name, operation.sha256)
        return Answer(wire.encode(_body(result, whose)), cursor=getattr(event, "cursor", None))

    def _context(self, caller: Caller) -> Context:
        context: Context = self._make_context(
            principal=caller.principal, request_id=caller.request_id, resume_after=caller.resume_after
        )
        return context

    def _cost(self, operation: Operation, request: Request) -> dict[str, int]:
        requested = self._execution.requested_cost(operation, request.variables)
        return {"requested": requested, "maximum": self._settings.document_cost}

    def _observed(self, operation: Operation, outcome: str, started: float) -> None:
        if self._observe:
            self._observe(
                kind=operation.kind.value,
                operation_name=operation.name,
                outcome=outcome,
                seconds=time.perf_counter() - started,
            )


def refusal(error: Exception, whose: Whose) -> Answer:
    """The answer to what is not executed; also the last word of a subscription that fails."""
    errors = entries(error, whose)
    return Answer(wire.encode({"errors": errors}), errors=errors)


def _executed(result: ExecutionResult, whose: Whose, cost: dict[str, int] | None) -> Answer:
    body = _body(result, whose)
    if cost:
        body["extensions"] = {"cost": cost}
    try:
        return Answer(wire.encode(body))
    except ValueError as error:
        # A resolver gave a scalar that JSON cannot carry.
        return Answer(wire.encode({"data": None, "errors": present([error], whose)}))


def _body(result: ExecutionResult, whose: Whose) -> dict[str, Any]:
    body: dict[str, Any] = {"data": result.data}
    if result.errors:
        body["errors"] = present(result.errors, whose)
    return body
