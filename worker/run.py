"""One attempt at one task, from the clone to the report."""

import asyncio
import json
import shutil
import time
import traceback
from typing import Any

import claude_agent_sdk as sdk

from worker import git
from worker.agent import Agent, Ending
from worker.delivery import Delivery, Inbox
from worker.edits import Edits
from worker.orders import Orders
from worker.spool import LARGEST_BLOB_BYTES, Spool
from worker.story import Story, write

FEEDBACK_CHARS = 4_000
REPORTED_CHARS = 32_000  # of a summary, and of all checks' output together; events have them whole
LARGEST_RESULT_BYTES = 256 << 10
DEEPEST_RESULT = 50
RESUMED = "Your session was interrupted and goes on in another sandbox, where the branch and your edits are. Go on."
CANCELLED = Ending("It was cancelled.", "CANCELLED")


class Run:
    def __init__(self, orders: Orders, spool: Spool, inbox: Inbox, delivery: Delivery) -> None:
        self._orders, self._spool, self._inbox = orders, spool, inbox
        self._environ = git.environment(orders)
        self._repository = git.Repository(orders, self._environ, self._warn)
        self._edits = Edits(self._repository, orders.state / "shadow")
        self._story = Story(spool, self._repository, self._edits)
        self._agent = Agent(orders, self._story, inbox, delivery)
        self._checks: list[dict[str, Any]] = []
        self._base: str | None = None
        self._commit: str | None = None  # what the branch has beyond its base

    async def attempt(self, leave: asyncio.Event) -> dict[str, Any]:
        """Do the work and return the report; also when the server says stop, or the sandbox is asked to leave."""
        working = asyncio.create_task(self._work())
        halts = [asyncio.create_task(event.wait()) for event in (leave, self._inbox.stop)]
        try:
            await asyncio.wait({working, *halts}, return_when=asyncio.FIRST_COMPLETED)
            asked = Ending("The sandbox was asked to leave.", "KILLED") if leave.is_set() else CANCELLED
            ending = working.result() if working.done() else asked
        except Exception as error:  # noqa: BLE001 - the edge of the program: whatever it is, the server shall know
            traceback.print_exc()
            ending = Ending(f"The worker failed: {type(error).__name__}: {error}", "AGENT_ERROR")
        finally:
            for task in (working, *halts):
                task.cancel()
            await asyncio.wait({working})
            await self._agent.close()
        return self._report(ending)

    async def _work(self) -> Ending:
        """The agent and the checks in turn, until all checks pass, or there were enough rounds, or nothing is left."""
        code, number = "SPAWN_FAILED", 0
        try:
            text = await self._prepare()
            code = "AGENT_ERROR"
            while True:
                ending = await self._agent.converse(text)
                if not ending.code:
                    self._checks = [await self._check(command, number) for command in self._orders.data["checks"]]
                    failed = [check for check in self._checks if not check["passed"]]
                    text = ""
                    if await self._agent.listen():
                        continue
                    if failed and number < self._orders.rounds:
                        number += 1
                        said = [f"$ {check['command']}\n{check['output'][-FEEDBACK_CHARS:]}" for check in failed]
                        text = "\n\n".join(["These checks fail. Mend what they show:", *said])
                        continue
                    if failed:
                        ending = Ending(f"{len(failed)} checks fail. {ending.text}", "CHECKS_FAILED")
                await self._save(ending)
                if ending.code or not await self._agent.listen():
                    return ending
        except git.GitFailed as error:
            return Ending(str(error), "CREDENTIAL_REJECTED" if error.denied else code)

    async def _prepare(self) -> str:
        """Everything up to where the agent waits for its first words, which are returned."""
        orders, resume = self._orders, self._orders.state / "resume"
        self._base = base = await self._repository.prepare()
        await self._edits.start(base)
        self._story.log(f"The repository is ready on {orders.branch} at {base or 'no commit'}.")
        if (recorded := resume / "edits.json").exists():
            for path in await self._edits.restore(recorded):
                self._warn(f"The recorded change of {path} does not fit the branch any more.")
        await self._story.compare(by="WORKER")
        about = {"repository": orders.repository_url or None, "branch": orders.branch, "base": base}
        if orders.session_id and (transcript := resume / "transcript.jsonl").exists():
            folder = orders.home / ".claude/projects" / sdk.project_key_for_directory(orders.repository)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(transcript, folder / f"{orders.session_id}.jsonl")
            try:
                await self._agent.start(self._environ, orders.session_id, about | {"resumedSession": True})
            except sdk.ClaudeSDKError as error:
                self._warn(f"The session could not be resumed, a new one begins: {error}")
            else:
                return RESUMED
        await self._agent.start(self._environ, None, about | {"resumedSession": False})
        return orders.prompt

    async def _check(self, command: str, number: int) -> dict[str, Any]:
        self._story.tell("CHECK_STARTED", by="WORKER", command=command, round=number)
        began = time.monotonic()
        done = await git.command("bash", "-c", command, cwd=self._orders.repository, env=self._environ)
        took, output = round((time.monotonic() - began) * 1000), "\n".join(filter(None, (done.out, done.ended)))
        check = {"command": command, "passed": done.code == 0, "output": output, "durationMs": took}
        self._story.tell("CHECK_COMPLETED", by="WORKER", round=number, **check)
        await self._story.compare(by="WORKER")
        return check

    async def _save(self, ending: Ending) -> None:
        message = self._orders.data["commitMessage"]
        if committed := await self._repository.commit(f"WIP: {message}" if ending.code else message):
            self._story.tell("COMMITTED", by="WORKER", commit=committed[0], message=message, files=committed[1])
        pushed, head = await self._repository.push(), await self._repository.head()
        self._commit = head if head != self._base else None
        if pushed:
            self._story.tell("PUSHED", by="WORKER", branch=self._orders.branch, commit=head)

    def _report(self, ending: Ending) -> dict[str, Any]:
        if ending.code:
            self._story.tell("ERROR", by="WORKER", text=ending.text, code=ending.code)
        write(f"ended: {ending.code or 'well'}")
        share = REPORTED_CHARS // max(1, len(self._checks))
        session = self._agent.session_id
        files = self._orders.home.glob(f".claude/projects/*/{session}.jsonl")
        kept = [file.read_bytes() for file in files if file.is_file() and file.stat().st_size <= LARGEST_BLOB_BYTES]
        return {
            "success": ending.code is None,
            "summary": (ending.text if ending.code else self._story.last_text or ending.text)[:REPORTED_CHARS],
            "output": self._output(),
            "branch": self._orders.branch if self._commit else None,
            "commit": self._commit,
            "checks": [check | {"output": check["output"][-share:]} for check in self._checks],
            "failureCode": ending.code,
            "sessionId": session or None,
            "transcriptBlob": self._spool.put_blob(kept[0]) if kept else None,
        }

    def _output(self) -> Any:
        """What the agent has left as its result; what is no JSON, or too deep, counts as a text."""
        file, text = self._orders.result, "null"
        try:
            if file.is_file():  # all else may never open, or never end
                with file.open("rb") as opened:
                    text = opened.read(LARGEST_RESULT_BYTES).decode("utf-8", "replace")
            elif file.exists():
                self._warn(f"The result is left out: {file} is not a file.")
            value = json.loads(text)
            return value if _levels(value) <= DEEPEST_RESULT else text
        except OSError as error:
            self._warn(f"The result is left out: {error}")
            return None
        except (ValueError, RecursionError):
            return text

    def _warn(self, text: str) -> None:
        self._story.log(text, "warning")


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inner), default=0)
