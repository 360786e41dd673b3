"""What the server holds for a user, as its owner sees it: that it is there, and never what it is."""

from datetime import datetime

import strawberry

from app import auth
from app.enums import CredentialKind
from resolvers import credentials as resolve
from schema.fields import described, mutation
from schema.payloads import ERRORS, UserError
from schema.rules import reached

described(CredentialKind, "What a credential opens.")


@reached("A secret held for a user. It can be set and deleted, never read back.")
class Credential:
    kind: CredentialKind = strawberry.field(description="What it opens.")
    hint: str = strawberry.field(description="The last four characters, to tell two apart.")
    created_at: datetime = strawberry.field(description="When it was set.")
    last_used_at: datetime | None = strawberry.field(description="When it was last used, to the minute.")


@strawberry.input(description="A secret to hold for the caller, in the place of an earlier one of its kind.")
class SetCredentialInput:
    kind: CredentialKind = strawberry.field(description="What it opens.")
    secret: str = strawberry.field(description="The secret itself: 8 to 8,192 ASCII characters without spaces.")


@strawberry.input(description="Which of the caller's credentials to delete.")
class DeleteCredentialInput:
    kind: CredentialKind = strawberry.field(description="What it opens.")


@reached("The credential.")
class CredentialPayload:
    credential: Credential | None = strawberry.field(
        default=None, description="The credential, or the one that was deleted, unless there are errors."
    )
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class CredentialMutation:
    set_credential = mutation(
        resolve.set_credential,
        CredentialPayload,
        "Hold a secret for the caller's own account.",
        takes=SetCredentialInput,
        rule=auth.SIGNED_IN,
        answers="credential",
        served=True,
    )
    delete_credential = mutation(
        resolve.delete_credential,
        CredentialPayload,
        "Hold it no longer. What uses it in this moment may still end its use.",
        takes=DeleteCredentialInput,
        rule=auth.SIGNED_IN,
        answers="credential",
    )
