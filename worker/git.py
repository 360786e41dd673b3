"""The repository: how it comes here, how work on it is committed, and how the branch goes back."""

import asyncio
import re
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from worker import process
from worker.orders import Orders
from worker.server import pauses

Environ = Mapping[str, str]
NONE: Environ = {}
LONGEST_COMMAND_SECONDS = 1800.0
LONGEST_ABSENCE_SECONDS = 1800.0  # for so long a remote that does not answer is tried again
PUSH_ATTEMPTS = 4
DENIED = re.compile(r"Authentication failed|could not read (Username|Password)|terminal prompts disabled|error: 40[13]")
AWAY = re.compile(
    r"Could ?n[o']t (resolve|connect)|Failed to connect|Connection (refused|reset|timed out|was reset)|Empty reply"
    r"|error: 5\d\d|early EOF|hung up unexpectedly|RPC failed|timed out|Operation too slow|Recv failure|Send failure"
)
BEHIND = re.compile(r"\[(remote )?rejected\].*(fetch first|non-fast-forward|cannot lock ref|failed to update ref)")
CONFIG = {
    "credential.helper": "",  # forgets any other
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "http.lowSpeedLimit": "100",
    "http.lowSpeedTime": "120",
    "safe.directory": "*",
}
SETTINGS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "http:https:ssh:git",
    "GIT_LFS_SKIP_SMUDGE": "1",
}
IGNORED = "__pycache__/\n*.pyc\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.venv/\nnode_modules/\n.DS_Store\n"


class GitFailed(Exception):
    """A git command ended badly; the sentence is git's own last one."""

    def __init__(self, command: str, said: str) -> None:
        self.said = said
        lines = [line for line in said.strip().splitlines() if not line.startswith("hint:")]
        telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote: ", " !"))]
        super().__init__(f"git {command}: {(telling or lines or ['it failed'])[-1].strip()}")

    @property
    def denied(self) -> bool:
        return bool(DENIED.search(self.said))

    @property
    def away(self) -> bool:
        return not self.denied and bool(AWAY.search(self.said))


def environment(orders: Orders) -> dict[str, str]:
    """What any git in this sandbox runs with, the agent's own too. The remote's password is fetched when asked for."""
    ignored = orders.state / "ignored"
    ignored.write_text(IGNORED)
    address = urlsplit(orders.repository_url)
    program = f"PYTHONPATH={shlex.quote(str(Path(__file__).parents[1]))} {shlex.quote(sys.executable)}"
    config = CONFIG | {
        f"credential.{address.scheme}://{address.netloc.rpartition('@')[2]}.helper": f"!{program} -m worker.credential",
        "core.excludesFile": str(ignored),
    }
    pairs = [(f"GIT_CONFIG_KEY_{place}", key) for place, key in enumerate(config)]
    pairs += [(f"GIT_CONFIG_VALUE_{place}", value) for place, value in enumerate(config.values())]
    author = {"name": "OmoiOS", "email": "agent@localhost"} | (orders.data.get("author") or {})
    pairs += [
        (f"GIT_{role}_{key.upper()}", author[key]) for role in ("AUTHOR", "COMMITTER") for key in ("name", "email")
    ]
    return {**orders.environ, **SETTINGS, **dict(pairs), "GIT_CONFIG_COUNT": str(len(config))}


class Repository:
    def __init__(self, orders: Orders, environ: Mapping[str, str]) -> None:
        self.folder = orders.repository
        self.branch = orders.branch
        self._url = orders.repository_url
        self._base = orders.base_branch
        self._environ = {**environ, "LC_ALL": "C.UTF-8"}

    async def prepare(self) -> str | None:
        """Bring it here, on its branch. Returns the commit from which the branch comes, None when there is none yet.

        What an earlier start of the worker has left in this home stays as it is.
        """
        if not self.folder.exists():
            draft = self.folder.with_name("repository.draft")
            await self.run("init", "-q", "-b", self.branch, str(draft), cwd=self.folder.parent)
            if self._url:
                await self.run("remote", "add", "origin", self._url, cwd=draft)
                await self._remote("fetch", "-q", "--tags", "origin", cwd=draft)
                await self._check_out(draft)
            draft.rename(self.folder)
        base = await self._ref(f"refs/remotes/origin/{self._base}") or await self.head()
        if base and (head := await self.head()):
            return (await self.run("merge-base", base, head, failing=True)).strip() or head
        return base

    async def head(self) -> str | None:
        return await self._ref("HEAD")

    async def commit(self, message: str) -> tuple[str, list[str]] | None:
        """Commit all that is there. None when nothing has changed since the last commit."""
        await self.run("add", "-A")
        files = [path for path in (await self.run("diff", "--cached", "--name-only", "-z")).split("\0") if path]
        if not files:
            return None
        await self.run("commit", "-q", "--no-verify", "-m", message)
        return (await self.run("rev-parse", "HEAD")).strip(), files

    async def push(self) -> bool:
        """Send the branch if it has commits that the remote lacks, on top of what others have pushed meanwhile."""
        if not self._url or not (
            await self.run("log", "--format=%H", "-1", "HEAD", "--not", "--remotes", failing=True)
        ):
            return False
        for left in reversed(range(PUSH_ATTEMPTS)):
            try:
                refspec = f"HEAD:refs/heads/{self.branch}"
                await self._remote("push", "-q", "--no-verify", "origin", refspec, operation="PUSH")
                break
            except GitFailed as error:
                if not left or not BEHIND.search(error.said):
                    raise
                await self._rebase()
        return True

    async def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        failing: bool = False,
        data: bytes = b"",
        environ: Environ = NONE,
    ) -> str:
        """What it printed. When it fails: GitFailed, or "" where that is an answer too."""
        done = await process.run(
            *("git", "-c", "core.hooksPath=/dev/null", *arguments),
            cwd=cwd or self.folder, env={**self._environ, **environ}, seconds=LONGEST_COMMAND_SECONDS, data=data,
        )  # fmt: skip
        if done.code and not failing:
            raise GitFailed(arguments[0], done.ended or done.err or done.out)
        return "" if done.code else done.out

    async def _check_out(self, folder: Path) -> None:
        refs = (await self.run("for-each-ref", "--format=%(refname)", "refs/remotes", cwd=folder)).split()
        if not self._base:
            await self.run("remote", "set-head", "origin", "--auto", cwd=folder, failing=True)
        ours, base = (f"refs/remotes/origin/{name}" for name in (self.branch, self._base or "HEAD"))
        if refs and ours not in refs and self._base and base not in refs:
            raise GitFailed("checkout", f"The remote has no branch {self._base} to begin from.")
        if refs:
            start = ours if ours in refs else base
            await self.run("checkout", "-q", "--no-track", "-B", self.branch, start, cwd=folder)

    async def _rebase(self) -> None:
        await self._remote("fetch", "-q", "origin", f"+refs/heads/{self.branch}:refs/remotes/origin/{self.branch}")
        try:
            await self.run("rebase", "-q", f"refs/remotes/origin/{self.branch}")
        except GitFailed as error:
            await self.run("rebase", "--abort", failing=True)
            raise GitFailed("rebase", f"error: Others have changed {self.branch} in the same places.") from error

    async def _remote(self, *arguments: str, cwd: Path | None = None, operation: str = "FETCH") -> str:
        attempts, gives_up = pauses(), time.monotonic() + LONGEST_ABSENCE_SECONDS
        while True:
            try:
                return await self.run(*arguments, cwd=cwd, environ={"OMOI_GIT_OPERATION": operation})
            except GitFailed as error:
                if not error.away or time.monotonic() > gives_up:
                    raise
                await asyncio.sleep(next(attempts))

    async def _ref(self, name: str) -> str | None:
        return (await self.run("rev-parse", "-q", "--verify", f"{name}^{{commit}}", failing=True)).strip() or None
