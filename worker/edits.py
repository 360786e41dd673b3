"""What changes in the working tree, seen through an index and objects of our own beside the repository's."""

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.git import GitFailed, Repository

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
KINDS = {"A": "CREATED", "D": "DELETED", "R": "RENAMED"}
DIFF = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--full-index", "--binary")
SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    previous_path: str | None
    kind: str
    diff: str
    net: str  # the same path against the branch's base

    def payload(self, tool_use_id: str | None) -> dict[str, Any]:
        hunks = self.diff.partition("\n@@")[2].splitlines()[1:]
        return {
            **({"toolUseId": tool_use_id} if tool_use_id else {}),
            "path": self.path,
            **({"previousPath": self.previous_path} if self.previous_path else {}),
            "kind": self.kind,
            "additions": sum(line.startswith("+") for line in hunks),
            "deletions": sum(line.startswith("-") for line in hunks),
            "diff": self.diff,
            **({"net": self.net} if self.net != self.diff else {}),
            "sizeBytes": len(self.diff.encode()),
            "binary": "\nGIT binary patch\n" in self.diff or "\nBinary files " in self.diff,
        }


class Edits:
    def __init__(self, repository: Repository, folder: Path) -> None:
        self._repository = repository
        self._objects = folder / "objects"
        self._environ = {
            "GIT_DIR": str(repository.folder / ".git"),
            "GIT_WORK_TREE": str(repository.folder),
            "GIT_OBJECT_DIRECTORY": str(self._objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(repository.folder / ".git/objects"),
        }
        self._lock = asyncio.Lock()
        self._origins: dict[str, set[str]] = {}  # path -> the names that its content had before
        self._base = EMPTY_TREE
        self.tree = EMPTY_TREE

    async def start(self, base: str | None) -> None:
        """From now on changes are told against what is committed; their net against the base."""
        shutil.rmtree(self._objects.parent, ignore_errors=True)
        self._objects.mkdir(parents=True)
        head = await self._repository.head()
        await self._git("read-tree", *([head] if head else ["--empty"]))
        self.tree = (await self._git("write-tree")).strip()
        self._base = (await self._git("rev-parse", f"{base}^{{tree}}")).strip() if base else EMPTY_TREE

    async def compare(self, path: str | None = None) -> list[Change]:
        """What has changed since the last time, in one file or in all. A file that git ignores never has."""
        async with self._lock:
            if path is None:
                await self._git("add", "-A")
            elif inside := self._inside(path):
                await self._git("add", "-A", "--", f":(literal){inside}", failing=True)
            before, self.tree = self.tree, (await self._git("write-tree")).strip()
            return [] if before == self.tree else await self._changes(before)

    async def restore(self, recorded: Path) -> list[str]:
        """Bring back the edits of an earlier attempt, except where the branch has moved on. Returns what stayed out."""
        edits = json.loads(await asyncio.to_thread(recorded.read_bytes))
        base, left = edits["base"] or EMPTY_TREE, []
        await self._git("read-tree", base, index="restored")
        for change in edits["changes"]:
            if change["net"]:
                try:
                    await self._git(
                        "apply", "--cached", "--whitespace=nowarn", data=change["net"].encode(), index="restored"
                    )
                except GitFailed:
                    left.append(change["path"])
        tree = (await self._git("write-tree", index="restored")).strip()
        for status, path in _pairs(await self._git("diff-tree", "-r", "-z", "--name-status", base, tree)):
            if await self._blob(base, path) != await self._blob(self.tree, path):
                left += [path] if await self._blob(tree, path) != await self._blob(self.tree, path) else []
            elif status == "D":
                await asyncio.to_thread((self._repository.folder / path).unlink, missing_ok=True)
            else:
                await self._git("checkout-index", "-f", "--", path, index="restored")
        return left

    async def _changes(self, before: str) -> list[Change]:
        names = await self._git(*DIFF, "-z", "--name-status", before, self.tree)
        diffs = iter(SECTION.split(await self._git(*DIFF, "-p", before, self.tree))[1:])
        changes = []
        for status, path, previous in _statuses(names):
            diff = "".join(next(diffs) for _ in range(2 if status == "T" else 1))
            if previous:
                self._origins[path] = self._origins.get(path, set()) | {previous} | self._origins.pop(previous, set())
            paths = [f":(literal){each}" for each in sorted({path} | self._origins.get(path, set()))]
            net = await self._git(*DIFF, "-p", self._base, self.tree, "--", *paths)
            changes.append(Change(path, previous, KINDS.get(status, "MODIFIED"), diff, net))
        return changes

    async def _blob(self, tree: str, path: str) -> str:
        return await self._git("ls-tree", tree, "--", f":(literal){path}")

    def _inside(self, path: str) -> str | None:
        folder = self._repository.folder
        absolute = Path(folder, path)
        absolute = absolute.parent.resolve() / absolute.name
        return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else None

    async def _git(self, *arguments: str, failing: bool = False, data: bytes = b"", index: str = "index") -> str:
        environ = self._environ | {"GIT_INDEX_FILE": str(self._objects.with_name(index))}
        return await self._repository.run(*arguments, failing=failing, data=data, environ=environ)


def _pairs(names: str) -> Iterator[tuple[str, str]]:
    fields = names.split("\0")[:-1]
    return zip(fields[::2], fields[1::2], strict=True)


def _statuses(names: str) -> Iterator[tuple[str, str, str | None]]:
    """Status letter, path, and the path before it was renamed."""
    fields = iter(names.split("\0")[:-1])
    for status in fields:
        path = next(fields)
        yield (status[0], next(fields), path) if status[0] == "R" else (status[0], path, None)
