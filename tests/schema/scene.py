"""One small project with a bit of everything, made as a user would, and an example input for every mutation."""

from dataclasses import dataclass
from typing import Any

from tests import world as w


@dataclass(frozen=True)
class Scene:
    project: str
    ticket: str
    blocker: str
    task: str
    cancelled: str  # a task that was cancelled
    token: str
    member: w.Account


async def lay(owner: w.Account, member: w.Account) -> Scene:
    project = await w.project(owner, repository={"owner": "ada", "name": "apollo"}, settings={"checks": ["pytest -q"]})
    await w.share(owner, project, member)
    ticket, blocker = [(await w.ticket(owner, project, description="Softly."))["id"] for _ in range(2)]
    await owner.do("setTicketBlockers", "ticket { id }", ticketId=ticket, blockedBy=[blocker])
    first = (await w.task(owner, ticket))["id"]
    task = (await w.task(owner, ticket, dependsOn=[first]))["id"]
    cancelled = (await w.task(owner, ticket, title="Paint it"))["id"]
    await owner.do("cancelTask", "task { id }", taskId=cancelled, reason="Nobody will see it.")
    token = await owner.do("createAccessToken", "accessToken { id }", name="robot")
    return Scene(project, ticket, blocker, task, cancelled, token["id"], member)


def examples(scene: Scene) -> dict[str, dict[str, Any]]:
    """For every mutation an input that changes something in a fresh scene."""
    return {
        "createUser": {"email": "eve@example.com", "name": "Eve"},
        "createSignInLink": {"userId": scene.member.id},
        "createAccessToken": {"name": "another robot"},
        "revokeAccessToken": {"tokenId": scene.token},
        "createProject": {"name": "Gemini"},
        "updateProject": {"projectId": scene.project, "name": "Artemis"},
        "archiveProject": {"projectId": scene.project, "archived": True},
        "setMember": {"projectId": scene.project, "email": scene.member.email, "role": "VIEWER"},
        "removeMember": {"projectId": scene.project, "userId": scene.member.id},
        "createTicket": {"projectId": scene.project, "title": "Return"},
        "updateTicket": {"ticketId": scene.ticket, "title": "Land gently"},
        "moveTicket": {"ticketId": scene.ticket, "status": "READY"},
        "setTicketBlockers": {"ticketId": scene.ticket, "blockedBy": []},
        "createTask": {"ticketId": scene.ticket, "title": "Test the lander"},
        "setTaskDependencies": {"taskId": scene.task, "dependsOn": []},
        "cancelTask": {"taskId": scene.task},
        "retryTask": {"taskId": scene.cancelled},
    }
