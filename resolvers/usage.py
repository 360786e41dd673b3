"""Answers about what work has cost."""

from app.models import Project, Sandbox, Task, Ticket
from app.usage import Usage
from resolvers.context import Context


async def of_sandbox(context: Context, sandbox: Sandbox) -> Usage:
    found: Usage = await context.loaders.usage_of_sandboxes.load(sandbox.id)
    return found


async def of_task(context: Context, task: Task) -> Usage:
    found: Usage = await context.loaders.usage_of_tasks.load(task.id)
    return found


async def of_ticket(context: Context, ticket: Ticket) -> Usage:
    found: Usage = await context.loaders.usage_of_tickets.load(ticket.id)
    return found


async def of_project(context: Context, project: Project) -> Usage:
    found: Usage = await context.loaders.usage_of_projects.load(project.id)
    return found
