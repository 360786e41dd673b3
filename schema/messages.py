"""What is said to agents, as clients see it."""

from datetime import datetime

import strawberry

from app import auth, models
from app.enums import MessageKind, MessageStatus
from resolvers import messages as resolve
from schema.fields import described, field, later, mutation
from schema.nodes import Node, node, public_id
from schema.payloads import ERRORS, UserError
from schema.rules import reached
from schema.users import AuthorKind

described(
    MessageKind, "What sort of message. COLLABORATION is what another agent of the same project says; no authority."
)
described(MessageStatus, "QUEUED → SENT → DELIVERED, or EXPIRED or CANCELLED before that.")


@node(models.Message, "Something that is said to a running agent.")
class Message(Node):
    id = public_id("message")
    sandbox = field(resolve.sandbox_of, later("Sandbox", "schema.sandboxes"), "The sandbox of the agent.")
    kind: MessageKind = strawberry.field(description="What sort of message it is.")
    body: str = strawberry.field(description="What is said.")
    author: str = strawberry.field(description="Who says it.")
    author_kind: AuthorKind = strawberry.field(description="What sort of author that is.")  # type: ignore[valid-type]
    status: MessageStatus = strawberry.field(description="How far it has come.")
    delivered_in_turn: int | None = strawberry.field(description="The turn in which the agent was shown it.")
    created_at: datetime = strawberry.field(description="When it was said.")
    delivered_at: datetime | None = strawberry.field(description="When the agent was shown it.")
    expires_at: datetime | None = strawberry.field(description="From when on it shall not be shown any more.")


@strawberry.input(description="What to say to a running agent.")
class InjectMessageInput:
    sandbox_id: strawberry.ID = strawberry.field(description="The sandbox's id.")
    body: str = strawberry.field(description="What to say, 32,000 characters at most.")
    kind: MessageKind | None = strawberry.field(
        default=MessageKind.USER, description="USER, or INTERRUPT to stop what the agent does now."
    )
    expires_at: datetime | None = strawberry.field(
        default=strawberry.UNSET, description="From when on it shall not be shown any more; never when left out."
    )
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input says it once."
    )


@strawberry.input(description="Which message to take back.")
class CancelMessageInput:
    message_id: strawberry.ID = strawberry.field(description="The message's id.")


@reached("The message.")
class MessagePayload:
    message: Message | None = strawberry.field(default=None, description="The message, unless there are errors.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class MessageMutation:
    inject_message = mutation(
        resolve.inject,
        MessagePayload,
        "What a person says to a running agent.",
        takes=InjectMessageInput,
        rule=auth.member("sandbox_id"),
        answers="message",
    )
    cancel_message = mutation(
        resolve.cancel,
        MessagePayload,
        "Take back a message that waits. What its worker holds already may still be shown; it is DELIVERED then.",
        takes=CancelMessageInput,
        rule=auth.member("message_id"),
        answers="message",
    )
