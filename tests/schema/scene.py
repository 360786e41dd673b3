"""One small project with a bit of everything, made as a user would, and an example input for every mutation."""

from dataclasses import dataclass
from typing import Any

from tests import world as w
from tests.schema import boxes


@dataclass(frozen=True)
class Scene:
    project: str
    ticket: str
    blocker: str
    task: str
    cancelled: str  # a task that was cancelled
    free: str  # a task that nothing holds back
    sandbox: str  # one that works on a task
    spare: str  # another one
    message: str  # that waits for the agent there
    token: str
    member: w.Account
    box: boxes.Box  # the sandbox, to speak as its worker


async def lay(owner: w.Account, member: w.Account) -> Scene:
    project = await w.project(owner, repository={"owner": "ada", "name": "apollo"}, settings={"checks": ["pytest -q"]})
    await w.share(owner, project, member)
    ticket, blocker = [(await w.ticket(owner, project, description="Softly."))["id"] for _ in range(2)]
    await owner.do("setTicketBlockers", "ticket { id }", ticketId=ticket, blockedBy=[blocker])
    first = (await w.task(owner, ticket))["id"]
    task = (await w.task(owner, ticket, dependsOn=[first]))["id"]
    cancelled = (await w.task(owner, ticket, title="Paint it"))["id"]
    await owner.do("cancelTask", "task { id }", taskId=cancelled, reason="Nobody will see it.")
    free = (await w.task(owner, blocker, title="Start it"))["id"]
    box = await boxes.spawn(owner, project, title="Fly it")
    spare = (await boxes.spawn(owner, project, title="Fly another")).id
    message = await owner.do("injectMessage", "message { id }", sandboxId=box.id, body="Softly.")
    await owner.do("setCredential", "credential { kind }", kind="ANTHROPIC", secret="sk-ant-0123456789")
    token = await owner.do("createAccessToken", "accessToken { id }", name="robot")
    return Scene(
        project, ticket, blocker, task, cancelled, free, box.id, spare, message["id"], token["id"], member, box
    )


def examples(scene: Scene) -> dict[str, dict[str, Any]]:
    """For every mutation an input that changes something in a fresh scene."""
    return {
        "createUser": {"email": "eve@example.com", "name": "Eve"},
        "createSignInLink": {"userId": scene.member.id},
        "createAccessToken": {"name": "another robot"},
        "revokeAccessToken": {"tokenId": scene.token},
        "setCredential": {"kind": "GITHUB", "secret": "ghp_0123456789abcdef"},
        "deleteCredential": {"kind": "ANTHROPIC"},
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
        "spawnSandbox": {"taskId": scene.free},
        "stopSandbox": {"sandboxId": scene.spare},
        "injectMessage": {"sandboxId": scene.sandbox, "body": "Gently."},
        "cancelMessage": {"messageId": scene.message},
        "reportEvents": {"events": []},
        "acknowledgeMessages": {"messageIds": [scene.message]},
        "finishSandbox": {"success": True, "summary": "It flies."},
        "issueGitCredential": {"operation": "FETCH"},
    }
