"""The contract with clients: all nouns together, as one schema."""

from datetime import datetime

import strawberry
from strawberry.schema.config import StrawberryConfig
from strawberry.tools import merge_types

from schema.activity import ActivitySubscription
from schema.credentials import CredentialMutation
from schema.events import EVENT_TYPES, EventSubscription
from schema.health import HealthQuery
from schema.messages import MessageMutation
from schema.nodes import NodeQuery
from schema.projects import ProjectMutation, ProjectQuery
from schema.rules import require_rules
from schema.sandboxes import SandboxMutation, SandboxQuery
from schema.scalars import JSON, DateTime, Json
from schema.tasks import TaskMutation, TaskQuery
from schema.tickets import TicketMutation, TicketQuery
from schema.users import AccessToken, UserMutation, UserQuery
from schema.worker import WorkerMutation, WorkerSubscription

MUTATIONS = (
    UserMutation,
    CredentialMutation,
    ProjectMutation,
    TicketMutation,
    TaskMutation,
    SandboxMutation,
    MessageMutation,
    WorkerMutation,
)


def build() -> strawberry.Schema:
    """The schema; refuses to be built when a field does not declare its rule."""
    query = merge_types(
        "Query", (NodeQuery, UserQuery, ProjectQuery, TicketQuery, TaskQuery, SandboxQuery, HealthQuery)
    )
    mutation = merge_types("Mutation", MUTATIONS)
    subscription = merge_types("Subscription", (EventSubscription, ActivitySubscription, WorkerSubscription))
    config = StrawberryConfig(scalar_map={datetime: DateTime, JSON: Json})
    built = strawberry.Schema(query, mutation, subscription, types=[AccessToken, *EVENT_TYPES], config=config)
    require_rules(built)
    return built
