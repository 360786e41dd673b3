"""Projects as clients see them."""

from datetime import datetime
from typing import Any

import strawberry

from app import auth, models
from app.enums import EgressPolicy, PermissionMode, RepositoryHost, Role
from resolvers import activity as resolve_activity
from resolvers import projects as resolve
from resolvers import sandboxes as resolve_sandboxes
from resolvers import streams as resolve_streams
from resolvers import tasks as resolve_tasks
from resolvers import tickets as resolve_tickets
from resolvers import usage as resolve_usage
from schema.activity import Activity, StreamDigest
from schema.fields import Argument, described, field, mutation, query
from schema.nodes import ID, Node, node, public_id
from schema.paging import PAGE, Connection, connection
from schema.payloads import ERRORS, UserError
from schema.rules import reached
from schema.sandboxes import SANDBOX_FILTER, Sandbox
from schema.tasks import TASK_FILTER, Task
from schema.tickets import TICKET_FILTER, Ticket
from schema.usage import Usage
from schema.users import User

described(Role, "What a member may do in a project.")
described(RepositoryHost, "Where a repository lives.")
described(EgressPolicy, "What a sandbox may reach.")
described(PermissionMode, "What an agent may do without being asked about it.")


def _host(context: Any, project: models.Project) -> Any:
    return project.repository_host


def _owner(context: Any, project: models.Project) -> str | None:
    return project.repository_owner


def _name(context: Any, project: models.Project) -> str | None:
    return project.repository_name


@reached("The repository that a project works on.")
class Repository:
    host = field(_host, RepositoryHost, "GitHub, or any other remote that `git clone` takes.")
    owner = field(_owner, str | None, "Its owner, on GitHub.")
    name = field(_name, str | None, "Its name, on GitHub.")
    clone_url: str = strawberry.field(description="The address that `git clone` takes; never with a password in it.")
    default_branch: str = strawberry.field(description="The branch that work starts from.")


@reached("A member of a project.")
class Membership:
    user = field(resolve.user_of_membership, User, "Who.")
    role: Role = strawberry.field(description="What they may do.")


@reached("The machine that a sandbox gets.")
class SandboxResources:
    cpu: int = strawberry.field(description="Processors.")
    memory_gb: int = strawberry.field(description="Memory in GiB.")
    disk_gb: int = strawberry.field(description="Disk in GiB.")
    snapshot: str | None = strawberry.field(description="The provider's snapshot to start from.")
    image: str | None = strawberry.field(description="The container image to start from.")


@reached("How a project's work is done.")
class ProjectSettings:
    concurrency: int = strawberry.field(description="Sandboxes that may run at once for this project.")
    max_attempts: int = strawberry.field(description="Attempts that a task gets.")
    model: str | None = strawberry.field(description="The model that agents use; null is the server's default.")
    resources: SandboxResources = strawberry.field(description="The machine that a sandbox gets.")
    checks: list[str] = strawberry.field(
        description="Commands that must pass before a task counts as done, e.g. `pytest -q`."
    )
    egress: EgressPolicy = strawberry.field(description="What a sandbox may reach.")
    budget_usd: float | None = strawberry.field(
        description="Hard ceiling for the project, acted on while agents run; null is none."
    )
    auto_approve_specs: bool = strawberry.field(
        description="Specs go from phase to phase without waiting for a person."
    )
    auto_steer: bool = strawberry.field(description="The guardian may speak to agents by itself.")
    open_pull_requests: bool = strawberry.field(description="A finished ticket gets its pull request by itself.")
    permission_mode: PermissionMode = strawberry.field(description="What agents may do without being asked about it.")
    max_turns: int = strawberry.field(description="Turns that an agent gets in one attempt.")
    enable_skills: bool = strawberry.field(description="Agents may use skills.")
    enable_subagents: bool = strawberry.field(description="Agents may hand work to sub-agents.")


@node(models.Project, "A repository, its members, and the work on it.")
class Project(Node):
    id = public_id("project")
    name: str = strawberry.field(description="What people call it.")
    description: str = strawberry.field(description="What it is about.")
    repository = field(resolve.repository_of, Repository | None, "What it works on; null when nothing is linked.")
    created_by = field(resolve.creator_of, User, "Who made it.")
    members = field(resolve.members_of, list[Membership], "Who belongs to it, longest first.")
    settings = field(resolve.settings_of, ProjectSettings, "How its work is done.")
    archived_at: datetime | None = strawberry.field(description="Since when it is archived; null when it is active.")
    created_at: datetime = strawberry.field(description="When it was made.")
    updated_at: datetime = strawberry.field(description="When it was last changed.")
    tickets = connection(resolve_tickets.tickets_of_project, Ticket, "Its tickets, the newest first.", **TICKET_FILTER)
    tasks = connection(resolve_tasks.tasks_of_project, Task, "Its tasks, the oldest first.", **TASK_FILTER)
    sandboxes = connection(
        resolve_sandboxes.sandboxes_of_project, Sandbox, "Tries at its tasks, the newest first.", **SANDBOX_FILTER
    )
    activity = connection(
        resolve_activity.activity_of_project,
        Activity,
        "What happened in it, the oldest first; its cursors also resume `projectActivity`.",
    )
    digest = field(
        resolve_streams.stream_of, StreamDigest, "Lets a client prove that it has missed nothing of `activity`."
    )
    usage = field(resolve_usage.of_project, Usage, "What work on it has cost.")
    viewer_role = field(resolve.role_of_viewer, Role, "What the caller may do in it.")


@strawberry.input(description="Either owner and name (GitHub) or cloneUrl.")
class RepositoryInput:
    owner: str | None = strawberry.field(default=strawberry.UNSET, description="Its owner on GitHub.")
    name: str | None = strawberry.field(default=strawberry.UNSET, description="Its name on GitHub.")
    clone_url: str | None = strawberry.field(
        default=strawberry.UNSET, description="The address that `git clone` takes, without a password."
    )
    default_branch: str | None = strawberry.field(default="main", description="The branch that work starts from.")


@strawberry.input(description="What is left out stays as it is; null brings back the default.")
class SandboxResourcesInput:
    cpu: int | None = strawberry.field(default=strawberry.UNSET, description="Processors, 1 to 64.")
    memory_gb: int | None = strawberry.field(default=strawberry.UNSET, description="Memory in GiB, 1 to 512.")
    disk_gb: int | None = strawberry.field(default=strawberry.UNSET, description="Disk in GiB, 1 to 2,000.")
    snapshot: str | None = strawberry.field(default=strawberry.UNSET, description="The provider's snapshot.")
    image: str | None = strawberry.field(default=strawberry.UNSET, description="The container image.")


@strawberry.input(description="What is left out stays as it is; null brings back the default.")
class ProjectSettingsInput:
    concurrency: int | None = strawberry.field(
        default=strawberry.UNSET, description="Sandboxes that may run at once, 1 to 1,000."
    )
    max_attempts: int | None = strawberry.field(
        default=strawberry.UNSET, description="Attempts that a task gets, 1 to 20."
    )
    model: str | None = strawberry.field(default=strawberry.UNSET, description="The model that agents use.")
    resources: SandboxResourcesInput | None = strawberry.field(
        default=strawberry.UNSET, description="The machine that a sandbox gets."
    )
    checks: list[str] | None = strawberry.field(
        default=strawberry.UNSET, description="Commands that must pass, 20 at most."
    )
    egress: EgressPolicy | None = strawberry.field(default=strawberry.UNSET, description="What a sandbox may reach.")
    budget_usd: float | None = strawberry.field(default=strawberry.UNSET, description="Hard ceiling for the project.")
    auto_approve_specs: bool | None = strawberry.field(
        default=strawberry.UNSET, description="Specs go on without waiting for a person."
    )
    auto_steer: bool | None = strawberry.field(
        default=strawberry.UNSET, description="The guardian may speak to agents by itself."
    )
    open_pull_requests: bool | None = strawberry.field(
        default=strawberry.UNSET, description="A finished ticket gets its pull request by itself."
    )
    permission_mode: PermissionMode | None = strawberry.field(
        default=strawberry.UNSET, description="What agents may do without being asked about it."
    )
    max_turns: int | None = strawberry.field(
        default=strawberry.UNSET, description="Turns that an agent gets, 1 to 10,000."
    )
    enable_skills: bool | None = strawberry.field(default=strawberry.UNSET, description="Agents may use skills.")
    enable_subagents: bool | None = strawberry.field(
        default=strawberry.UNSET, description="Agents may hand work to sub-agents."
    )


@strawberry.input(description="A new project; the caller becomes its owner.")
class CreateProjectInput:
    name: str = strawberry.field(description="What people call it, 100 characters at most.")
    description: str | None = strawberry.field(default="", description="What it is about.")
    repository: RepositoryInput | None = strawberry.field(default=strawberry.UNSET, description="What it works on.")
    settings: ProjectSettingsInput | None = strawberry.field(
        default=strawberry.UNSET, description="How its work is done."
    )
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input makes one project."
    )


@strawberry.input(description="What is left out stays as it is.")
class UpdateProjectInput:
    project_id: strawberry.ID = strawberry.field(description="The project's id.")
    name: str | None = strawberry.field(default=strawberry.UNSET, description="What people call it.")
    description: str | None = strawberry.field(default=strawberry.UNSET, description="What it is about.")
    repository: RepositoryInput | None = strawberry.field(
        default=strawberry.UNSET, description="What it works on, told as a whole; null unlinks it."
    )
    settings: ProjectSettingsInput | None = strawberry.field(
        default=strawberry.UNSET, description="How its work is done; only what is given is changed."
    )


@strawberry.input(description="Put a project into the archive, or take it out.")
class ArchiveProjectInput:
    project_id: strawberry.ID = strawberry.field(description="The project's id.")
    archived: bool = strawberry.field(default=True, description="False takes it out of the archive.")


@strawberry.input(description="Add a member, or give one another role.")
class SetMemberInput:
    project_id: strawberry.ID = strawberry.field(description="The project's id.")
    email: str = strawberry.field(description="The address of the member's account.")
    role: Role = strawberry.field(description="What the member may do.")


@strawberry.input(description="Whom to remove.")
class RemoveMemberInput:
    project_id: strawberry.ID = strawberry.field(description="The project's id.")
    user_id: strawberry.ID = strawberry.field(description="The member's id.")


@reached("The project.")
class ProjectPayload:
    project: Project | None = strawberry.field(default=None, description="The project, unless there are errors.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class ProjectQuery:
    project = query(resolve.project, Project | None, "A project by its id.", rule=auth.viewer("id"), **ID)
    projects = query(
        resolve.projects_of_viewer,
        Connection[Project],
        "The projects that the caller belongs to, the newest first.",
        rule=auth.SIGNED_IN,
        include_archived=Argument(bool | None, "Archived ones too.", False),
        **PAGE,
    )


@strawberry.type
class ProjectMutation:
    create_project = mutation(
        resolve.create,
        ProjectPayload,
        "Make a project; the caller becomes its owner.",
        takes=CreateProjectInput,
        rule=auth.SIGNED_IN,
        answers="project",
        served=True,
    )
    update_project = mutation(
        resolve.change,
        ProjectPayload,
        "Change what is given, and nothing else.",
        takes=UpdateProjectInput,
        rule=auth.owner("project_id"),
        answers="project",
        served=True,
    )
    archive_project = mutation(
        resolve.archive,
        ProjectPayload,
        "An archived project keeps everything and starts nothing.",
        takes=ArchiveProjectInput,
        rule=auth.owner("project_id"),
        answers="project",
    )
    set_member = mutation(
        resolve.set_member,
        ProjectPayload,
        "Add a member, or give one another role.",
        takes=SetMemberInput,
        rule=auth.owner("project_id"),
        answers="project",
    )
    remove_member = mutation(
        resolve.remove_member,
        ProjectPayload,
        "From the next moment on the member sees nothing of the project, live streams included.",
        takes=RemoveMemberInput,
        rule=auth.owner("project_id"),
        answers="project",
    )
