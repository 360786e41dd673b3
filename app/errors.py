"""What callers can do wrong, as facts: one base, one stable code each, one sentence a person can act on."""

from collections.abc import Sequence
from typing import Any, ClassVar


class AppError(Exception):
    """The base of every expected refusal. Its message may be shown to the caller as it stands."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, path: Sequence[str] = (), details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = list(path)
        self.details = details or {}


class RequestError(AppError):
    """What only a programmer, or signing in, can mend: always a top-level GraphQL error."""


class Unauthenticated(RequestError):
    code = "UNAUTHENTICATED"


class Forbidden(RequestError):
    code = "FORBIDDEN"


class BadUserInput(RequestError):
    code = "BAD_USER_INPUT"


class RateLimited(RequestError):
    """The caller asks for too much at once, or too often; `retryAfter` says in how many seconds to come back."""

    code = "RATE_LIMITED"


class Unavailable(RequestError):
    """What the answer needs is away for a moment; the same request may succeed soon."""


class DomainError(AppError):
    """What a person can mend: data in a mutation's payload, a top-level error in a query."""


class NotFound(DomainError):
    """Unknown, foreign and malformed ids all answer with this same sentence."""

    code = "NOT_FOUND"

    def __init__(self, *, path: Sequence[str] = ()) -> None:
        super().__init__("There is nothing here with that id that you may see.", path=path)


class InvalidInput(DomainError):
    code = "INVALID_INPUT"


class Conflict(DomainError):
    code = "CONFLICT"


class InvalidTransition(DomainError):
    code = "INVALID_TRANSITION"


class DependencyCycle(DomainError):
    code = "DEPENDENCY_CYCLE"


class ProjectArchived(DomainError):
    code = "PROJECT_ARCHIVED"


class NoRepository(DomainError):
    code = "NO_REPOSITORY"


class RepositoryRefused(DomainError):
    """The project names a repository that this server does not hand to sandboxes."""

    code = "NO_REPOSITORY"


class BudgetExhausted(DomainError):
    code = "BUDGET_EXHAUSTED"


class SandboxNotRunning(DomainError):
    code = "SANDBOX_NOT_RUNNING"


class ProviderUnavailable(DomainError):
    code = "PROVIDER_UNAVAILABLE"


class CredentialMissing(DomainError):
    code = "CREDENTIAL_MISSING"


class IdempotencyMismatch(DomainError):
    code = "IDEMPOTENCY_MISMATCH"


class LimitReached(DomainError):
    code = "LIMIT_REACHED"


class Several(DomainError):
    """Several refusals of one input, so that a form can show them all at once."""

    code = "INVALID_INPUT"

    def __init__(self, errors: Sequence[DomainError]) -> None:
        super().__init__(" ".join(error.message for error in errors))
        self.errors = list(errors)


class CannotStart(Exception):
    """The server, or a command, cannot go on; the message says what is wrong and what to do."""
