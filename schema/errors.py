"""What callers are told when something fails: the only place where errors become the `errors` of an answer."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from graphql import FieldNode, GraphQLError
from strawberry.exceptions import StrawberryInputCoercionError

from app.errors import AppError, BadUserInput, RequestError, Several

MASKED = "Something went wrong on our side."
LOGGED = 5  # faults of one answer: a list of a hundred objects may fail in the same way a hundred times

log = structlog.get_logger(__name__)


class CostExceeded(RequestError):
    """The document, its variables or its execution are larger than what one request may ask for."""

    code = "COST_EXCEEDED"


class PersistedQueryNotFound(RequestError):
    code = "PERSISTED_QUERY_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("PersistedQueryNotFound")  # Apollo's client looks for this very word


class PersistedQueryRequired(RequestError):
    code = "PERSISTED_QUERY_REQUIRED"

    def __init__(self) -> None:
        super().__init__("This server executes only the documents that its clients were built with.")


class Refused(Exception):
    """A request that GraphQL itself refused before any field was executed."""

    def __init__(self, errors: Iterable[GraphQLError]) -> None:
        super().__init__("The request was refused.")
        self.errors = list(errors)


@dataclass(frozen=True, slots=True)
class Whose:
    """The operation that failed, as far as it is known: enough to find it, nothing of what it carried."""

    request_id: str
    operation: str | None = None
    document: str | None = None


def entries(error: Exception, whose: Whose) -> list[dict[str, Any]]:
    """The `errors` of the answer to a request that failed as a whole."""
    if isinstance(error, Refused):
        return present(error.errors, whose)
    return present([error], whose)


def present(errors: Iterable[Exception], whose: Whose) -> list[dict[str, Any]]:
    """Every entry has a code and the request id. What nobody expected is logged and shown as one bare sentence."""
    presented: list[dict[str, Any]] = []
    faults = 0
    for error in errors:
        cause = _cause(error)
        found = list(_expected(error, cause, whose))
        if not found:
            faults += 1
            if faults <= LOGGED:
                _log(cause, error, whose)
            found = [_entry(error, MASKED, AppError.code, whose, {})]
        presented.extend(found)
    return presented


def _expected(error: Exception, cause: Exception, whose: Whose) -> Iterator[dict[str, Any]]:
    if isinstance(cause, Several):
        for one in cause.errors:
            yield _entry(error, one.message, one.code, whose, one.details)
    elif isinstance(cause, AppError):
        yield _entry(error, cause.message, cause.code, whose, cause.details)
    elif isinstance(error, GraphQLError) and _is_the_callers(error, cause):
        yield _entry(error, _without_python(error.message, cause), BadUserInput.code, whose, {})


def _cause(error: Exception) -> Exception:
    while isinstance(error, GraphQLError) and error.original_error is not None:
        error = error.original_error
    return error


def _is_the_callers(error: GraphQLError, cause: Exception) -> bool:
    """Without a path nothing was executed: syntax, validation, variables. With one, an argument may be at fault."""
    if error.path is None or isinstance(cause, StrawberryInputCoercionError):
        return True
    # An error of ours, raised while a value was completed, is located at the field; one about an argument at its value.
    return isinstance(cause, GraphQLError) and not all(isinstance(node, FieldNode) for node in error.nodes or ())


def _without_python(message: str, cause: Exception) -> str:
    """Drop the text of an exception that a scalar's parser raised without meaning it for the caller."""
    if isinstance(cause, GraphQLError):
        return message
    return re.sub(r", but encountered error '.*'; found", ", found", message, flags=re.DOTALL)


def _entry(error: Exception, message: str, code: str, whose: Whose, details: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"message": message}
    if isinstance(error, GraphQLError):
        if error.locations:
            entry["locations"] = [{"line": at.line, "column": at.column} for at in error.locations]
        if error.path is not None:
            entry["path"] = error.path
    entry["extensions"] = {**details, "code": code, "requestId": whose.request_id}
    return entry


def _log(cause: Exception, error: Exception, whose: Whose) -> None:
    path = ".".join(map(str, error.path or ())) if isinstance(error, GraphQLError) else None
    log.error(
        "operation_failed",
        request_id=whose.request_id,
        operation=whose.operation,
        document=whose.document,
        path=path,
        exc_info=cause,
    )
