"""The six steps that show that an installation works, each seen through the public API alone."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console

from app.cli.client import Client, Refused
from app.errors import AppError

STEPS = 6
PICK_UP_SECONDS = 180.0
RUN_SECONDS = 300.0
POLL_SECONDS = 0.1
LAST_EVENTS_SECONDS = 5.0
ANSWER = "126410606437752"
PROJECT = "OmoiOS tour"
TITLE = "Compute C(50,25) with a program"
DESCRIPTION = (
    "Write a Python program binomial.py that computes the binomial coefficient C(50,25), run it, "
    "and say the number that it prints."
)
SHOWN_CHARS = 160
SAYS = ("text", "remark", "output", "message", "summary", "status")
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}

VIEWER = "{ viewer { user { name } } health { status version } }"
PROJECTS = """query($after: String) { projects(first: 100, after: $after) {
  pageInfo { hasNextPage endCursor } nodes { id name repository { cloneUrl } }
} }"""
CREATE_PROJECT = """mutation($input: CreateProjectInput!) {
  createProject(input: $input) { project { id } errors { message } }
}"""
CREATE_TICKET = """mutation($input: CreateTicketInput!) {
  createTicket(input: $input) { ticket { id tasks(first: 1) { nodes { id } } } errors { message } }
}"""
TASK = """query($id: ID!) { task(id: $id) {
  status attempt waitingFor { code message } failure { code message } result { summary output branch commit }
  sandboxes(first: 1) { nodes { id name attempt } }
} }"""
EVENTS = """subscription($id: ID!, $after: String) { sandboxEvents(sandboxId: $id, after: $after) { cursor events {
  __typename type
  ... on MessageEvent { text } ... on ToolUseEvent { tool input } ... on GenericEvent { remark: text }
  ... on ToolCompletedEvent { tool isError output(maxChars: 160) }
  ... on FileEditedEvent { change { path kind additions deletions diff } }
  ... on SandboxStatusEvent { status message } ... on CheckEvent { check { command passed } }
  ... on CompletedEvent { success summary }
} } }"""


class TourFailed(AppError):
    """A step did not happen, or not in its time."""


class Tour:
    def __init__(self, client: Client, console: Console, *, repository: str | None) -> None:
        self._client = client
        self._console = console
        self._repository = repository
        self._key = f"tour-{time.time_ns()}"
        self._edits = 0  # seen live
        self._words: list[str] = []  # that were shown last

    async def run(self) -> None:
        """All six steps, or TourFailed with the reason."""
        await self._step(1, "Checking API availability", self._api)
        where = self._repository or "an empty repository"
        project_id = await self._step(2, f"Creating/finding project for {where}", self._project)
        task_id = await self._step(3, "Creating ticket with math task", lambda: self._ticket(project_id))
        task = await self._step(4, "Waiting for task dispatch", lambda: self._dispatched(task_id))
        async with self._watching(task_id, task):
            ended = await self._ended(task_id)
        self._told(ended)

    async def _step(self, number: int, what: str, act: Callable[[], Awaitable[Any]]) -> Any:
        self._say(f"[{number}/{STEPS}] {what}...", end=" ")
        return await act()

    async def _api(self) -> None:
        found = await self._client.ask(VIEWER)
        if found["health"]["status"] == "DOWN":
            raise TourFailed("The server says that it is DOWN; its `health` says why.")
        self._say("OK")

    async def _project(self) -> str:
        async for project in self._projects():
            if project["name"] == PROJECT and (project["repository"] or {}).get("cloneUrl") == _url(self._repository):
                self._say(f"OK (project_id: {project['id']})")
                return str(project["id"])
        given: dict[str, Any] = {"name": PROJECT, "idempotencyKey": self._key}
        if self._repository:
            given["repository"] = _repository(self._repository)
        made = _made(await self._client.ask(CREATE_PROJECT, input=given), "project")
        self._say(f"OK (project_id: {made['id']})")
        return str(made["id"])

    async def _projects(self) -> AsyncIterator[Any]:
        after = None
        while True:
            page = (await self._client.ask(PROJECTS, after=after))["projects"]
            for project in page["nodes"]:
                yield project
            if not page["pageInfo"]["hasNextPage"]:
                return
            after = page["pageInfo"]["endCursor"]

    async def _ticket(self, project_id: str) -> str:
        given = {"projectId": project_id, "title": TITLE, "description": DESCRIPTION, "idempotencyKey": self._key}
        made = _made(await self._client.ask(CREATE_TICKET, input=given), "ticket")
        self._say(f"OK (ticket_id: {made['id']})")
        return str(made["tasks"]["nodes"][0]["id"])

    async def _dispatched(self, task_id: str) -> Any:
        async def picked_up(task: Any) -> bool:
            return bool(task["sandboxes"]["nodes"])

        task = await self._until(task_id, picked_up, PICK_UP_SECONDS)
        self._say(f"(task_id: {task_id})")
        self._say(f"[5/{STEPS}] Sandbox spawned: {task['sandboxes']['nodes'][0]['id']}")
        return task

    async def _ended(self, task_id: str) -> Any:
        async def ended(task: Any) -> bool:
            return task["status"] in ENDED

        return await self._until(task_id, ended, RUN_SECONDS)

    async def _until(self, task_id: str, holds: Callable[[Any], Awaitable[bool]], seconds: float) -> Any:
        task: Any = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    task = (await self._client.ask(TASK, id=task_id))["task"]
                    if await holds(task):
                        return task
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            reasons = " ".join(reason["message"] for reason in (task or {}).get("waitingFor", ()))
            raise TourFailed(f"Not within {seconds:.0f} seconds. {reasons}".strip()) from None

    @asynccontextmanager
    async def _watching(self, task_id: str, task: Any) -> AsyncIterator[None]:
        """Shows events and diffs of the task's sandbox, and of the next one when it is tried again."""
        watching = asyncio.create_task(self._show(task_id, task["sandboxes"]["nodes"][0]))
        try:
            yield
            await asyncio.wait({watching}, timeout=LAST_EVENTS_SECONDS)
        finally:
            watching.cancel()
            [ended] = await asyncio.gather(watching, return_exceptions=True)
        if isinstance(ended, Exception):
            raise TourFailed(f"The sandbox's events could not be followed: {ended}") from ended

    async def _show(self, task_id: str, sandbox: Any) -> None:
        while True:
            async for payload in self._client.follow(EVENTS, id=sandbox["id"]):
                for event in payload["events"]:
                    self._edits += event["type"] == "FILE_EDITED"
                    for line in self._new(_lines(event)):
                        self._say(f"      {line}", style="dim")
                if any(event["type"] == "COMPLETED" for event in payload["events"]):
                    break
            if await self._is_over(task_id):
                return
            sandbox = await self._next(task_id, sandbox)
            self._say(f"[5/{STEPS}] Sandbox spawned: {sandbox['id']} (attempt {sandbox['attempt']})")

    def _new(self, lines: list[str]) -> list[str]:
        """Without what was said just before: an agent's last words are its result too."""
        before, self._words = self._words, [line.partition(": ")[2] for line in lines]
        return lines if self._words != before else []

    async def _is_over(self, task_id: str) -> bool:
        return (await self._client.ask(TASK, id=task_id))["task"]["status"] in ENDED

    async def _next(self, task_id: str, last: Any) -> Any:
        while True:
            task = (await self._client.ask(TASK, id=task_id))["task"]
            if (newest := task["sandboxes"]["nodes"][0])["id"] != last["id"]:
                return newest
            await asyncio.sleep(POLL_SECONDS)

    def _told(self, task: Any) -> None:
        if task["status"] != "COMPLETED":
            failure = task["failure"]
            raise TourFailed(f"The task ended {task['status']}: {failure['code']}, {failure['message']}")
        if not self._edits:
            raise TourFailed("The task completed, but no edit of a file was seen as it happened.")
        result = task["result"]
        if ANSWER not in re.sub(r"[,\s]", "", f"{result['summary']} {result['output']}"):
            raise TourFailed(f"The result does not name {ANSWER}: {result['summary']}")
        self._say(f"[6/{STEPS}] Task completed! Result: C(50,25) = {int(ANSWER):,}")
        if self._repository:
            if not result["branch"] or not result["commit"]:
                raise TourFailed("The task completed, but no branch was pushed.")
            self._say(f"      Branch created: {result['branch']} (commit {result['commit'][:10]})")

    def _say(self, text: str, *, end: str = "\n", style: str | None = None) -> None:
        self._console.print(text, end=end, style=style, markup=False, highlight=False, soft_wrap=True)


def _lines(event: Any) -> list[str]:
    """What a terminal shows of an event."""
    kind = event["type"].lower().replace("_", " ")
    if change := event.get("change"):
        head = f"{change['kind'].lower()} {change['path']} (+{change['additions']} -{change['deletions']})"
        return [head, *(f"  {line}" for line in change["diff"].splitlines() if line[:1] in "+-@")]
    if event["type"] == "TOOL_USE":
        given = event["input"]
        return [f"{event['tool']}: {_short(str(given.get('command') or given.get('file_path') or ''))}"]
    if check := event.get("check"):
        return [f"check {'passed' if check['passed'] else 'failed'}: {check['command']}"]
    said = next((event[name] for name in SAYS if event.get(name)), None)
    return [f"{kind}: {_short(str(said))}"] if said else []


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"


def _repository(named: str) -> dict[str, str]:
    owner, _, name = named.partition("/")
    is_github = bool(re.fullmatch(r"[\w.-]+/[\w.-]+", named))
    return {"owner": owner, "name": name} if is_github else {"cloneUrl": named}


def _url(named: str | None) -> str | None:
    if named is None:
        return None
    given = _repository(named)
    return given.get("cloneUrl") or f"https://github.com/{named}.git"


def _made(answer: Any, what: str) -> Any:
    payload = next(iter(answer.values()))
    if payload["errors"]:
        raise Refused(" ".join(error["message"] for error in payload["errors"]))
    return payload[what]
