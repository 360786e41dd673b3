"""A server that really works: its orchestrator hands out tasks, boxes run on this machine, a script is the model."""

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.settings import Settings
from demo import model
from tests import world as w
from tests.servers import short_folder, until
from tests.world import Account, World

HURRY = {"OMOI_HEARTBEAT_SECONDS": "1", "CLAUDE_CODE_MAX_RETRIES": "1", "CLAUDE_CODE_RETRY_WATCHDOG": "false"}
TASK = """query($id: ID!) { task(id: $id) {
  status attempt maxAttempts failure { code message retryable } waitingFor { code }
  result { summary output branch commit checks { command passed } }
  usage { inputTokens outputTokens costUsd sandboxSeconds }
  sandboxes(first: 20) { nodes { id name status attempt branch failure { code message } boot { name error } log } }
} }"""
EVENTS = """query($id: ID!, $after: String) { sandbox(id: $id) { events(first: 100, after: $after) {
  pageInfo { hasNextPage endCursor } nodes { seq type source turn payload }
} } }"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


@dataclass
class Works:
    world: World
    account: Account
    folder: Path

    def repository(self, name: str = "work") -> Path:
        """A bare repository with one commit, which projects of this server may use by its path."""
        bare = self.folder / "data" / "repositories" / f"{name}.git"
        seed = self.folder / f"{name}-seed"
        git(self.folder, "init", "-q", "-b", "main", str(seed))
        (seed / "README.md").write_text("# Work\n")
        commit(seed, "Begin")
        git(self.folder, "clone", "-q", "--bare", str(seed), str(bare))
        return bare

    async def project(self, **given) -> str:
        return await w.project(self.account, **given)

    async def task(self, project_id: str, title: str, **given) -> str:
        """A ticket with its first task; answers the task's id."""
        wanted = {"projectId": project_id, "title": title, **given}
        made = await self.account.do("createTicket", "ticket { tasks { nodes { id } } }", **wanted)
        return made["tasks"]["nodes"][0]["id"]

    async def read(self, task_id: str):
        answer = await self.account(TASK, id=task_id)
        assert answer.errors == [], answer.errors
        return answer.data["task"]

    async def ended(self, task_id: str, seconds: float = 60):
        """The task, once it has ended."""
        return await self.reaches(task_id, *ENDED, seconds=seconds)

    async def reaches(self, task_id: str, *statuses: str, seconds: float = 60):
        async def there():
            return (await self.read(task_id))["status"] in statuses

        try:
            await until(there, seconds)
        except TimeoutError:
            raise AssertionError(await self.read(task_id)) from None
        return await self.read(task_id)

    async def done(self, project_id: str, title: str, **given):
        return await self.ended(await self.task(project_id, title, **given))

    async def events(self, sandbox_id: str) -> list[dict]:
        """All events of a sandbox."""
        events, after = [], None
        while True:
            page = (await self.account(EVENTS, id=sandbox_id, after=after)).data["sandbox"]["events"]
            events += page["nodes"]
            if not page["pageInfo"]["hasNextPage"]:
                return events
            after = page["pageInfo"]["endCursor"]

    async def outputs(self, task) -> list[str]:
        """What the commands of a task printed, one after the other."""
        told = await self.events(task["sandboxes"]["nodes"][0]["id"])
        return [event["payload"]["output"] for event in told if event["type"] == "TOOL_COMPLETED"]

    async def happens(self, sandbox_id: str, wanted: str) -> None:
        """Wait until a sandbox has an event of this type."""

        async def seen():
            return wanted in [event["type"] for event in await self.events(sandbox_id)]

        await until(seen)

    async def cleared(self, seconds: float = 20) -> None:
        """Wait until no box is left on this machine."""
        await until(lambda: not boxes(self.folder / "data"), seconds)


@contextlib.asynccontextmanager
async def working(database_url: str, **given):
    """`environment` hurries workers up, `server` is what else the server is built from; the rest are settings."""
    environment, server = given.pop("environment", {}), given.pop("server", {})
    with short_folder() as folder:
        async with model.serving() as scripted:
            settings = Settings(data=folder / "data", stream_poll_seconds=2.0, **given)
            settings.data.mkdir(mode=0o700)
            extra = {"scripted_model": scripted, "worker_environment": {**HURRY, **environment}, **server}
            async with World(settings, database_url, extra).running() as world:
                works = Works(world, await world.account("ada", admin=True), folder)
                yield works
                await stopped(works)


async def stopped(works: Works) -> None:
    """Whatever a test left running is ended, box by box."""
    answer = await works.account("{ sandboxes(filter: {active: true}, first: 100) { nodes { id } } }")
    for sandbox in answer.data["sandboxes"]["nodes"]:
        await works.account.change("stopSandbox", "sandbox { id }", sandboxId=sandbox["id"])
    await works.cleared(45)


def boxes(data: Path) -> list[str]:
    """The sandboxes that have anything on this machine."""
    return [path.name for path in (data / "sandboxes").glob("omoi-*")]


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=GIT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


GIT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "test@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
