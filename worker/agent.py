"""The agent: one session of the SDK, what is said to it while it works, and how its runs end."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import claude_agent_sdk as sdk

from worker import setup
from worker.delivery import Delivery
from worker.inbox import Inbox, spoken
from worker.orders import Orders
from worker.story import Story

INTERRUPT_SECONDS = 15.0
CLOSE_SECONDS = 5.0
AWAY = (None, 502, 503, 504)  # what a server that is away answers, or something in front of it


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of the agent ended. Without a code it ended well."""

    text: str
    code: str | None = None
    interrupted: bool = False
    unavailable: bool = False  # the model could not be reached: later it may be


class Agent:
    def __init__(self, orders: Orders, story: Story, inbox: Inbox, delivery: Delivery) -> None:
        self.session_id = ""
        self._orders, self._story, self._inbox, self._delivery = orders, story, inbox, delivery
        self._about: dict[str, Any] = {}
        self._client: sdk.ClaudeSDKClient | None = None
        self._unanswered: set[str] = set()  # prompts that no result has named yet
        self._idle = asyncio.Event()
        self._idle.set()
        self._speaking = asyncio.Lock()
        self._ending = Ending("")
        self._kills = setup.out_of_memory_kills()

    async def start(self, environ: dict[str, str], resume: str | None, about: dict[str, Any]) -> None:
        """Raises ClaudeSDKError, also when there is no such session to resume."""
        self._about = about | {"permissionMode": self._orders.permission_mode, "sdk": sdk.__version__}
        options = sdk.ClaudeAgentOptions(
            **setup.options(self._orders, environ), hooks=self._story.hooks(), resume=resume, stderr=self._story.write
        )
        client = sdk.ClaudeSDKClient(options)
        await client.connect()
        self._client = client
        self._reading = asyncio.create_task(self._read(client))

    async def converse(self, text: str) -> Ending:
        """Say this, if anything, and whatever arrives meanwhile, until the agent has nothing more to do."""
        if text:
            await self._say(text)
        feeding = asyncio.create_task(self._feed())
        try:
            while True:
                if not await self._settled():
                    await self._interrupt(INTERRUPT_SECONDS)
                    return Ending(f"The agent said nothing for {self._orders.stall_seconds:.0f} s.", "STALLED")
                async with self._speaking:
                    if self._idle.is_set():
                        return self._ending
        finally:
            feeding.cancel()
            await self._story.compare()

    async def deliver(self, message: dict[str, Any]) -> bool:
        """Show a message to the agent. True when it will answer."""
        name, kind, author, body = (message[key] for key in ("id", "kind", "author", "body"))
        if kind == "INTERRUPT":
            if self._client and not self._idle.is_set():
                await self._client.interrupt()
            self._story.tell("INTERRUPTED", reason=body or f"{author} interrupted.")
        if body:
            await self._say(spoken(message))
        self._story.tell("MESSAGE_DELIVERED", messageId=name, kind=kind, author=author)
        self._delivery.acknowledge(name, self._story.turn)
        return bool(body)

    async def close(self) -> None:
        """End it at once: an agent that is let go in the middle of a run would work on."""
        if self._client:
            await self._interrupt(CLOSE_SECONDS)
            self._reading.cancel()
            with contextlib.suppress(sdk.ClaudeSDKError):
                await self._client.disconnect()

    async def _interrupt(self, seconds: float) -> None:
        """Ask it to stop, and wait for so long until it has."""
        with contextlib.suppress(sdk.ClaudeSDKError, TimeoutError):
            async with asyncio.timeout(seconds):
                if self._client and not self._idle.is_set():
                    await self._client.interrupt()
                    await self._idle.wait()

    async def _say(self, text: str) -> None:
        """ClaudeSDKError when the agent's program has ended."""
        if self._client is None:
            raise sdk.ClaudeSDKError("The agent does not run.")
        prompt = {"type": "user", "uuid": str(uuid.uuid4()), "message": {"role": "user", "content": text}}
        self._unanswered.add(str(prompt["uuid"]))
        self._idle.clear()
        self._story.heard = time.monotonic()
        await self._client.query(_only(prompt | {"parent_tool_use_id": None}))

    async def _feed(self) -> None:
        while True:
            await self._inbox.arrived()
            async with self._speaking:
                if message := self._inbox.next():
                    with contextlib.suppress(sdk.ClaudeSDKError):  # the reader says how it ended
                        await self.deliver(message)

    async def _settled(self) -> bool:
        """False when the agent falls silent instead."""
        while not self._idle.is_set():
            left = self._story.heard + self._orders.stall_seconds - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), left)
        return True

    async def _read(self, client: sdk.ClaudeSDKClient) -> None:
        try:
            async for message in client.receive_messages():
                if isinstance(message, sdk.SystemMessage) and message.subtype == "init":
                    self._started(message.data)
                self._story.hear(message)
                if isinstance(message, sdk.ResultMessage):
                    self._unanswered -= {message.user_message_uuid, *(message.user_message_uuids or ())}
                    self._ending = judge(message)
                    if not self._unanswered:
                        self._idle.set()
            self._ending = Ending("The agent's program ended by itself.", "AGENT_ERROR")
        except Exception as error:  # noqa: BLE001 - the edge of a task that others wait for
            self._ending = self._died(error)
        self._idle.set()

    def _started(self, init: dict[str, Any]) -> None:
        if not self.session_id:
            cli = init.get("claude_code_version")
            self._story.tell("STARTED", **self._about, model=init.get("model"), tools=init.get("tools"), cli=cli)
        self.session_id = str(init.get("session_id") or self.session_id)

    def _died(self, error: Exception) -> Ending:
        if setup.out_of_memory_kills() > self._kills:
            return Ending("The agent's program was ended because the sandbox ran out of memory.", "OUT_OF_MEMORY")
        if isinstance(error, sdk.ProcessError) and error.exit_code in (-9, 137):
            return Ending("The agent's program was killed.", "KILLED")
        return Ending(f"The agent's program failed: {type(error).__name__}: {error}", "AGENT_ERROR")


def judge(result: sdk.ResultMessage) -> Ending:
    """Never by the subtype alone: a refused API call is called a success."""
    text = result.result or "; ".join(result.errors or ()) or result.subtype
    if not result.is_error:
        return Ending(text)
    if "BUDGET_EXHAUSTED" in text:
        return Ending(text, "BUDGET_EXHAUSTED")
    if result.terminal_reason in ("aborted_tools", "aborted_streaming"):
        return Ending("The agent was interrupted.", "CANCELLED", interrupted=True)
    if result.terminal_reason == "max_turns":
        return Ending("The agent reached its turn limit.", "AGENT_ERROR")
    if result.api_error_status in (401, 403):
        return Ending(text, "CREDENTIAL_REJECTED")
    unavailable = result.terminal_reason == "api_error" and result.api_error_status in AWAY
    return Ending(text, "AGENT_ERROR", unavailable=unavailable)


async def _only(prompt: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield prompt
