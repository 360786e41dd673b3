"""Sandboxes for tests, made as they are made: a task is started, and a worker with the sandbox's token reports."""

import gzip
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from app import ids
from tests import world as w

REPORTED = "acceptedThrough desiredState pendingMessages { id kind body author authorKind }"
BEGUN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass
class Box(w.Account):
    """One sandbox, spoken for by its worker."""

    name: str = ""
    task: str = ""
    reported: int = field(default=0)

    @property
    def id(self) -> str:
        return self.name

    @property
    def key(self) -> UUID:
        return ids.decode(self.name)[1]

    def event(self, type_: str, payload: Any = None, **given: Any) -> dict[str, Any]:
        """The next event, as a worker numbers it."""
        self.reported += 1
        moment = BEGUN.replace(second=self.reported % 60, minute=self.reported // 60 % 60)
        told = {"producerSeq": self.reported, "type": type_, "payload": payload if payload is not None else {}}
        return {**told, "source": "AGENT", "occurredAt": moment.isoformat().replace("+00:00", "Z"), **given}

    async def report(self, *events: dict[str, Any], **given: Any) -> dict[str, Any]:
        return await self.change("reportEvents", REPORTED, events=list(events), **given)

    async def did(self, type_: str, payload: Any = None, **given: Any) -> None:
        """One event that must be taken."""
        payload = await self.report(self.event(type_, payload, **given))
        assert (payload["errors"], payload["acceptedThrough"]) == ([], self.reported)

    async def finish(self, **given: Any) -> dict[str, Any]:
        wanted = {"success": True, "summary": "Done.", **given}
        return await self.change("finishSandbox", "desiredState", **wanted)

    async def upload(self, content: bytes) -> str:
        """A blob, by its hash."""
        sha256 = hashlib.sha256(content).hexdigest()
        headers = {"authorization": f"Bearer {self.token}", "content-encoding": "gzip"}
        answer = await self.world.http.put(f"/blobs/{sha256}", content=gzip.compress(content), headers=headers)
        assert answer.status_code == 201, answer.text
        return sha256


async def spawn(account: w.Account, project_id: str, **given: Any) -> Box:
    """A new task's first sandbox, PROVISIONING."""
    ticket = (await w.ticket(account, project_id))["id"]
    return await start(account, (await w.task(account, ticket, **given))["id"])


async def start(account: w.Account, task_id: str) -> Box:
    made = await account.do("spawnSandbox", "sandbox { id attempt }", taskId=task_id)
    key = ids.decode(made["id"])[1]
    token = account.world.server.keys.sandbox_token(key, made["attempt"])
    return Box(account.world, None, token, name=made["id"], task=task_id)


async def running(account: w.Account, project_id: str) -> Box:
    """The same, whose worker has been heard of: RUNNING."""
    box = await spawn(account, project_id)
    assert (await box.report())["errors"] == []
    return box


def edited(path: str, kind: str = "MODIFIED", **given: Any) -> dict[str, Any]:
    """What a worker tells about one edit of one line."""
    header = {"CREATED": "new file mode 100644\n", "DELETED": "deleted file mode 100644\n"}.get(kind, "")
    diff = f"diff --git a/{path} b/{path}\n{header}--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-old\n+new\n"
    told = {"path": path, "kind": kind, "additions": 1, "deletions": 1, "sizeBytes": 4, "binary": False, "diff": diff}
    return {**told, **given}
