"""The contract with clients: all nouns together, as one schema."""

from datetime import datetime

import strawberry
from strawberry.schema.config import StrawberryConfig
from strawberry.tools import merge_types

from schema.activity import ActivitySubscription
from schema.health import HealthQuery
from schema.nodes import NodeQuery
from schema.projects import ProjectMutation, ProjectQuery
from schema.rules import require_rules
from schema.scalars import DateTime
from schema.tasks import TaskMutation, TaskQuery
from schema.tickets import TicketMutation, TicketQuery
from schema.users import AccessToken, UserMutation, UserQuery


def build() -> strawberry.Schema:
    """The schema; refuses to be built when a field does not declare its rule."""
    query = merge_types("Query", (NodeQuery, UserQuery, ProjectQuery, TicketQuery, TaskQuery, HealthQuery))
    mutation = merge_types("Mutation", (UserMutation, ProjectMutation, TicketMutation, TaskMutation))
    subscription = merge_types("Subscription", (ActivitySubscription,))
    config = StrawberryConfig(scalar_map={datetime: DateTime})
    built = strawberry.Schema(query, mutation, subscription, types=[AccessToken], config=config)
    require_rules(built)
    return built
