"""One attempt at one task, from the clone to the report."""

import asyncio
import json
import sys
import time
import traceback
from typing import Any

import claude_agent_sdk as sdk

from worker import git, process, setup
from worker.agent import Agent, Ending
from worker.delivery import Delivery
from worker.edits import Edits
from worker.inbox import Inbox
from worker.orders import Orders
from worker.server import pauses
from worker.spool import LARGEST_BLOB_BYTES, Spool
from worker.story import Story

CHECK_SECONDS = 1200.0
ABSENCE_SECONDS = 1800.0  # for so long a server that is away is waited for before the model is asked again
FEEDBACK_CHARS = 4_000
REPORTED_CHARS = 32_000  # of a summary, and of all checks' output together; events have them whole
LARGEST_RESULT_BYTES = 256 << 10
RESUMED = "Your session was interrupted and goes on in another sandbox, where the branch and your edits are. Go on."
BACK = "The model could not be reached for a while. Go on."


class Run:
    def __init__(self, orders: Orders, spool: Spool, inbox: Inbox, delivery: Delivery) -> None:
        self._orders = orders
        self._spool = spool
        self._inbox = inbox
        self._delivery = delivery
        self._environ = git.environment(orders)
        self._repository = git.Repository(orders, self._environ)
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
            if working.done():
                ending = working.result()
            elif leave.is_set():
                ending = Ending("The sandbox was asked to leave.", "KILLED")
            else:
                ending = Ending("It was cancelled.", "CANCELLED")
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
        try:
            resumed = await self._prepare()
        except git.GitFailed as error:
            return Ending(str(error), "CREDENTIAL_REJECTED" if error.denied else "SPAWN_FAILED")
        text = RESUMED if resumed else self._orders.prompt
        while True:
            try:
                ending = await self._rounds(text)
            except sdk.ClaudeSDKError as error:
                ending = Ending(str(error), "AGENT_ERROR")
            try:
                await self._save(ending)
            except git.GitFailed as error:
                return Ending(str(error), "CREDENTIAL_REJECTED" if error.denied else "AGENT_ERROR")
            if ending.code or not await self._listen():
                return ending
            text = ""

    async def _prepare(self) -> bool:
        """Everything up to where the agent waits for its first words. True when its session goes on."""
        self._base = base = await self._repository.prepare()
        await self._edits.start(base)
        self._story.log(f"The repository is ready on {self._orders.branch} at {base or 'no commit'}.")
        if (recorded := self._orders.state / "resume/edits.json").exists():
            for path in await self._edits.restore(recorded):
                self._story.log(f"The recorded change of {path} does not fit the branch any more.", "warning")
        await self._story.compare(by="WORKER")
        about = {"repository": self._orders.repository_url or None, "branch": self._orders.branch, "base": base}
        if setup.lay_transcript(self._orders):
            try:
                await self._agent.start(self._environ, self._orders.session_id, about | {"resumedSession": True})
            except sdk.ClaudeSDKError as error:
                self._story.log(f"The session could not be resumed, a new one begins: {error}", "warning")
            else:
                return True
        await self._agent.start(self._environ, None, about | {"resumedSession": False})
        return False

    async def _rounds(self, text: str) -> Ending:
        """The agent and the checks in turn, until all checks pass or there were enough rounds."""
        number = 0
        while True:
            ending = await self._converse(text)
            if ending.interrupted:
                if not await self._instructed():
                    return Ending("It was interrupted, and nobody said how to go on.", "STALLED")
                text = ""
                continue
            if ending.code:
                return ending
            self._checks = [await self._check(command, number) for command in self._orders.data.get("checks") or ()]
            failed = [check for check in self._checks if not check["passed"]]
            if await self._listen():
                text = ""
            elif not failed:
                return ending
            elif number >= self._orders.rounds:
                return Ending(f"{len(failed)} of {len(self._checks)} checks fail. {ending.text}", "CHECKS_FAILED")
            else:
                number += 1
                said = (f"$ {check['command']}\n{check['output'][-FEEDBACK_CHARS:]}" for check in failed)
                text = "These checks fail. Mend what they show:\n\n" + "\n\n".join(said)

    async def _converse(self, text: str) -> Ending:
        """Once, and again when the server and with it the model was away meanwhile."""
        gives_up, attempts = time.monotonic() + ABSENCE_SECONDS, pauses()
        while True:
            before = self._delivery.failures
            ending = await self._agent.converse(text)
            if not ending.unavailable or self._delivery.failures == before or time.monotonic() > gives_up:
                return ending
            await asyncio.sleep(next(attempts))
            text = BACK

    async def _listen(self) -> bool:
        """Show the agent what was said while it did not work. True when it will answer."""
        answers = False
        while message := self._inbox.next():
            answers |= await self._agent.deliver(message)
        return answers

    async def _instructed(self) -> bool:
        self._story.tell("WAITING", text="Interrupted; waiting to be told how to go on.")
        try:
            async with asyncio.timeout(self._orders.stall_seconds):
                while not await self._listen():
                    await self._inbox.arrived()
        except TimeoutError:
            return False
        return True

    async def _check(self, command: str, number: int) -> dict[str, Any]:
        self._story.tell("CHECK_STARTED", command=command, round=number)
        began = time.monotonic()
        done = await process.run(
            *("bash", "-c", command), cwd=self._repository.folder, env=self._environ, seconds=CHECK_SECONDS, merged=True
        )
        check: dict[str, Any] = {
            "command": command,
            "passed": done.code == 0,
            "output": "\n".join(filter(None, (done.out, done.ended))),
            "durationMs": round((time.monotonic() - began) * 1000),
        }
        self._story.tell("CHECK_COMPLETED", round=number, **check)
        await self._story.compare(by="WORKER")
        return check

    async def _save(self, ending: Ending) -> None:
        """Commit and push what is there, also of a failed attempt."""
        message = self._orders.commit_message
        if committed := await self._repository.commit(f"WIP: {message}" if ending.code else message):
            self._story.tell("COMMITTED", commit=committed[0], message=message, files=committed[1])
        pushed = await self._repository.push()
        head = await self._repository.head()
        self._commit = head if head != self._base else None
        if pushed:
            self._story.tell("PUSHED", branch=self._orders.branch, commit=head)

    def _report(self, ending: Ending) -> dict[str, Any]:
        if ending.code:
            self._story.tell("ERROR", text=ending.text, code=ending.code)
        sys.stderr.write(f"ended: {ending.code or 'well'}\n")
        share = REPORTED_CHARS // max(1, len(self._checks))
        session = self._agent.session_id
        file = setup.transcript(self._orders.home, session)
        kept = file is not None and file.stat().st_size <= LARGEST_BLOB_BYTES
        return {
            "success": ending.code is None,
            "summary": (ending.text if ending.code else self._story.last_text or ending.text)[:REPORTED_CHARS],
            "output": self._output(),
            "branch": self._orders.branch if self._commit else None,
            "commit": self._commit,
            "checks": [check | {"output": check["output"][-share:]} for check in self._checks],
            "failureCode": ending.code,
            "sessionId": session or None,
            "transcriptBlob": self._spool.put_blob(file.read_bytes()) if file and kept else None,
        }

    def _output(self) -> Any:
        """What the agent has left as its result; what is no JSON counts as a text."""
        try:
            text = self._orders.result.read_bytes()[:LARGEST_RESULT_BYTES].decode("utf-8", "replace")
        except OSError:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text
