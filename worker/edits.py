"""What changes in the working tree, seen through an index and objects of our own beside the repository's."""

import asyncio
import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from worker.git import GitFailed, Repository

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
KINDS = {"A": "CREATED", "D": "DELETED", "R": "RENAMED"}
DIFF = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--full-index", "--binary")
SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)


class Edits:
    def __init__(self, repository: Repository, folder: Path) -> None:
        self._repository, self._shadow = repository, folder
        theirs, objects = repository.folder / ".git", folder / "objects"
        where = {"GIT_DIR": theirs, "GIT_WORK_TREE": repository.folder, "GIT_INDEX_FILE": folder / "index"}
        where |= {"GIT_OBJECT_DIRECTORY": objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES": theirs / "objects"}
        self._environ = {name: str(path) for name, path in where.items()}
        self._lock = asyncio.Lock()
        self._origins: dict[str, set[str]] = {}  # path -> the names that its content had before
        self._base = self.tree = EMPTY_TREE

    async def start(self, base: str | None) -> None:
        """From now on changes are told against what is committed; their net against the base."""
        shutil.rmtree(self._shadow, ignore_errors=True)
        (self._shadow / "objects").mkdir(parents=True)
        await self._git("read-tree", await self._repository.head() or "--empty")
        self.tree = (await self._git("write-tree")).strip()
        self._base = base or EMPTY_TREE

    async def compare(self, path: str | None = None) -> list[dict[str, Any]]:
        """What has changed since the last time, in one file or in all. A file that git ignores never has."""
        async with self._lock:
            one = ("--", f":(literal){path}") if path else ()
            await self._git("add", "-A", "--ignore-errors", *one, failing=True)  # a file outside, ignored, unreadable
            before, self.tree = self.tree, (await self._git("write-tree")).strip()
            return [] if before == self.tree else await self._changes(before)

    async def restore(self, recorded: Path) -> list[str]:
        """Bring back the edits of an earlier attempt, except where the branch has moved on. Returns what stayed out."""
        left, patch = [], self._shadow / "patch"
        recording = json.loads(await asyncio.to_thread(recorded.read_bytes))
        for change in [change for change in recording["changes"] if change["net"]]:
            patch.write_text(change["net"], newline="")
            for how in ("--reverse", "--check"), ("--whitespace=nowarn",):  # what can be taken back is there already
                with contextlib.suppress(GitFailed):
                    await self._git("apply", *how, str(patch))
                    break
            else:
                left.append(change["path"])
        return left

    async def _changes(self, before: str) -> list[dict[str, Any]]:
        names = await self._git(*DIFF, "-z", "--name-status", before, self.tree)
        diffs = iter(SECTION.split(await self._git(*DIFF, "-p", before, self.tree))[1:])
        changes, fields = [], iter(names.split("\0")[:-1])
        for status in fields:
            previous = next(fields) if status[0] == "R" else None
            path, diff = next(fields), "".join(next(diffs) for _ in range(2 if status == "T" else 1))
            if previous:
                self._origins[path] = self._origins.get(path, set()) | {previous} | self._origins.pop(previous, set())
            paths = [f":(literal){each}" for each in sorted({path} | self._origins.get(path, set()))]
            net = await self._git(*DIFF, "-p", self._base, self.tree, "--", *paths)
            hunks = diff.partition("\n@@")[2].splitlines()[1:]
            change = {
                "path": path,
                "previousPath": previous,
                "kind": KINDS.get(status[0], "MODIFIED"),
                "additions": sum(line.startswith("+") for line in hunks),
                "deletions": sum(line.startswith("-") for line in hunks),
                "diff": diff,
                "net": None if net == diff else net,
                "sizeBytes": len(diff.encode()),
                "binary": "\nGIT binary patch\n" in diff or "\nBinary files " in diff,
            }
            changes.append({name: value for name, value in change.items() if value is not None})
        return changes

    async def _git(self, *arguments: str, failing: bool = False) -> str:
        return await self._repository.run(*arguments, failing=failing, environ=self._environ)
