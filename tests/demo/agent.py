"""The real agent, with its real program, against the scripted model: one conversation in a folder of its own."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    AgentDefinition,
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

TOOLS = ["Bash", "Write", "Edit", "Read", "Agent"]
REVIEWER = AgentDefinition(description="reviews", prompt="You review.", tools=["Bash"])


@dataclass
class Run:
    """What a conversation has said so far."""

    folder: Path
    messages: list[Any] = field(default_factory=list)

    @property
    def result(self) -> ResultMessage:
        return next(message for message in reversed(self.messages) if isinstance(message, ResultMessage))

    @property
    def model(self) -> str:
        return next(message.model for message in self.messages if isinstance(message, AssistantMessage))

    def blocks(self, kind: type) -> list[Any]:
        said = (message for message in self.messages if isinstance(message, AssistantMessage | UserMessage))
        return [
            block
            for message in said
            for block in (message.content if isinstance(message.content, list) else ())
            if isinstance(block, kind)
        ]

    @property
    def texts(self) -> list[str]:
        return [block.text for block in self.blocks(TextBlock)]

    @property
    def thoughts(self) -> list[str]:
        return [block.thinking for block in self.blocks(ThinkingBlock)]

    @property
    def tools(self) -> list[str]:
        return [block.name for block in self.blocks(ToolUseBlock)]

    @property
    def outputs(self) -> list[str]:
        return [block.content for block in self.blocks(ToolResultBlock) if isinstance(block.content, str)]


def clear_environment(monkeypatch, home: Path, **more: str) -> None:
    """Nothing of this process reaches the agent, and the agent calls nobody but the model."""
    for name in set(os.environ) - {"PATH"}:
        monkeypatch.delenv(name)
    wanted = {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": "a-dummy/key+of=tests",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "IS_SANDBOX": "1",
        **more,
    }
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


def client(url: str, folder: Path, **more: Any) -> ClaudeSDKClient:
    folder.mkdir(exist_ok=True)
    options = {
        "cwd": folder,
        "env": {"ANTHROPIC_BASE_URL": url},
        "setting_sources": [],
        "permission_mode": "bypassPermissions",
        "tools": TOOLS,
        "agents": {"code-reviewer": REVIEWER},
        "max_turns": 30,
        **more,
    }
    return ClaudeSDKClient(ClaudeAgentOptions(**options))


async def listen(agent: ClaudeSDKClient, run: Run) -> Run:
    """Until the turn has ended."""
    async for message in agent.receive_response():
        run.messages.append(message)
    return run


async def converse(url: str, folder: Path, *prompts: str, **more: Any) -> Run:
    """One prompt after the other; the run has everything that was said."""
    run = Run(folder)
    async with client(url, folder, **more) as agent:
        for prompt in prompts:
            await agent.query(prompt)
            await listen(agent, run)
    return run
