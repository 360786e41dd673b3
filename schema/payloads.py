"""What every mutation answers beside its object: the refusals that a person can mend."""

import enum

import strawberry

from app.errors import DomainError
from schema.rules import reached


@strawberry.enum(description="Why a mutation changed nothing. New codes may be added.")
class ErrorCode(enum.Enum):
    INVALID_INPUT = strawberry.enum_value("INVALID_INPUT", description="A value does not fit; `path` says which.")
    NOT_FOUND = strawberry.enum_value("NOT_FOUND", description="There is nothing with that id that the caller may see.")
    CONFLICT = strawberry.enum_value("CONFLICT", description="Something else stands in the way.")
    INVALID_TRANSITION = strawberry.enum_value(
        "INVALID_TRANSITION", description="The object cannot go there from where it is; `allowed` says where it can."
    )
    DEPENDENCY_CYCLE = strawberry.enum_value(
        "DEPENDENCY_CYCLE", description="Things would wait for each other; `cycle` names the path."
    )
    PROJECT_ARCHIVED = strawberry.enum_value("PROJECT_ARCHIVED", description="The project is archived.")
    NO_REPOSITORY = strawberry.enum_value("NO_REPOSITORY", description="The project has no repository.")
    BUDGET_EXHAUSTED = strawberry.enum_value("BUDGET_EXHAUSTED", description="The budget is used up.")
    SANDBOX_NOT_RUNNING = strawberry.enum_value("SANDBOX_NOT_RUNNING", description="The sandbox does not run.")
    PROVIDER_UNAVAILABLE = strawberry.enum_value(
        "PROVIDER_UNAVAILABLE", description="The sandbox provider does not answer."
    )
    GITHUB_REJECTED = strawberry.enum_value("GITHUB_REJECTED", description="GitHub refused.")
    CREDENTIAL_MISSING = strawberry.enum_value("CREDENTIAL_MISSING", description="A credential is missing.")
    IDEMPOTENCY_MISMATCH = strawberry.enum_value(
        "IDEMPOTENCY_MISMATCH", description="The idempotency key was used with another input."
    )
    LIMIT_REACHED = strawberry.enum_value("LIMIT_REACHED", description="There are as many as there may be.")


@reached("A refusal that a person can mend.")
class UserError:
    message: str = strawberry.field(description="A sentence for people.")
    code: ErrorCode = strawberry.field(description="The same, for programs.")
    path: list[str] | None = strawberry.field(
        description='Where in the input, e.g. ["repository", "cloneUrl"]; null when it is about the whole.'
    )
    allowed: list[str] | None = strawberry.field(description="With INVALID_TRANSITION: where the object can go.")
    cycle: list[strawberry.ID] | None = strawberry.field(
        description="With DEPENDENCY_CYCLE: the ids along the path, the first one again at its end."
    )

    @classmethod
    def of(cls, error: DomainError) -> "UserError":
        return cls(
            message=error.message,
            code=ErrorCode(error.code),
            path=error.path or None,
            allowed=error.details.get("allowed"),
            cycle=error.details.get("cycle"),
        )


ERRORS = "Empty when it was done; nothing was changed when it is not."
