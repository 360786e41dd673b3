"""The repository: how it comes here, what runs in it, how work on it is committed, and how the branch goes back."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from worker.orders import Orders
from worker.server import PATIENCE_SECONDS, pauses

UNPROXIED = ("NO_PROXY", "no_proxy")
LARGEST_OUTPUT_BYTES = 64 << 20
LOOK_SECONDS = 0.5
LONGEST_COMMAND_SECONDS = 1800.0
LONGEST_ABSENCE_SECONDS = 600.0  # for so long a remote that does not answer is tried again
PUSH_ATTEMPTS = 4
DENIED = re.compile("Authentication failed|prompts disabled|error: 40[13]|repository .* not found")  # whoever may not
FINAL = re.compile(r"error: 4(?!08|29)\d\d")
AWAY = re.compile(
    r"not resolve|onnect to|Connection (refused|(was )?reset)|Empty reply|early EOF|hung up unexpectedly|RPC failed"
    r"|timed out|too slow|(Recv|Send) failure|(error:|response|code) (408|429|5\d\d)|transfer closed|GnuTLS recv error"
    r"|TLS connection was non-properly|SSL_ERROR_SYSCALL|unexpected eof|HTTP/2 stream .* not closed cleanly"
)
BEHIND = re.compile(r"\[(remote )?rejected\].*(fetch first|non-fast-forward|cannot lock ref|failed to update ref)")
OWN = {"credential.helper": "", "core.quotePath": "false", "gc.auto": "0"}  # the first forgets any other helper
SLOW = {"http.lowSpeedLimit": "100", "http.lowSpeedTime": "120"}
SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "http:https:ssh:git"}
IGNORED = "__pycache__/\n*.pyc\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.venv/\nnode_modules/\n.DS_Store\n"


class GitFailed(Exception):
    """A git command ended badly; the sentence is git's own last one, after what the remote had to say."""

    def __init__(self, command: str, said: str) -> None:
        self.said = re.sub(r"//[^/@\s]+@", "//", said)  # no user and no password
        self.denied = bool(DENIED.search(self.said))
        self.away = not (self.denied or FINAL.search(self.said)) and bool(AWAY.search(self.said))
        lines = [line.strip() for line in self.said.strip().splitlines() if not line.startswith("hint:")]
        remote = [line for line in lines[:-1] if line.startswith("remote:")]
        super().__init__(" ".join([f"git {command}:", *remote[-5:], *(lines[-1:] or ["it failed"])]))


def environment(orders: Orders) -> dict[str, str]:
    """What any git in this sandbox runs with, the agent's own too. The remote's password is fetched when asked for."""
    ignored = orders.state / "ignored"
    ignored.write_text(IGNORED)
    address = urlsplit(orders.repository_url)
    helper = f"credential.{address.scheme}://{address.netloc.rpartition('@')[2]}.helper"
    proxied = " ".join(f"{name}={shlex.quote(orders.environ.get(name, ''))}" for name in UNPROXIED)
    program = f"{proxied} PYTHONPATH={shlex.quote(str(Path(__file__).parents[1]))} {shlex.quote(sys.executable)}"
    author = {f"user.{key}": value for key, value in orders.data["author"].items()}
    config = {**OWN, **SLOW, **author, "core.excludesFile": str(ignored), helper: f"!{program} -m worker.server"}
    environ = {**orders.environ, **SETTINGS, "GIT_CONFIG_COUNT": str(len(config))}
    for place, (key, value) in enumerate(config.items()):
        environ |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
    return environ


class Done(NamedTuple):
    code: int  # -n for signal n
    ended: str  # why it was ended from here, if it was
    out: str
    err: str


async def command(*words: str, cwd: Path, env: Mapping[str, str], seconds: float = 1200.0, apart: bool = False) -> Done:
    """Run it to its end. It speaks to files, not pipes: what it leaves in the background holds up nothing."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = await asyncio.create_subprocess_exec(
            *words, cwd=cwd, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err if apart else out,
            start_new_session=True,
        )  # fmt: skip
        ended = f"It was ended after {seconds:.0f} s."
        try:
            for _ in range(1 + int(seconds / LOOK_SECONDS)):
                if os.fstat(out.fileno()).st_size > LARGEST_OUTPUT_BYTES:
                    ended = f"It was ended because it said more than {LARGEST_OUTPUT_BYTES >> 20} MiB."
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), min(LOOK_SECONDS, seconds))
                    ended = ""
                    break
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = await process.wait()
        said = [os.pread(file.fileno(), LARGEST_OUTPUT_BYTES, 0).decode("utf-8", "replace") for file in (out, err)]
        return Done(code, ended, said[0], said[1])


class Repository:
    def __init__(self, orders: Orders, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.folder, self.branch = orders.repository, orders.branch
        self._url, self._base = orders.repository_url, orders.base_branch
        self._environ = {**environ, "LC_ALL": "C.UTF-8"}
        self._say = say  # what holds it up
        # A host that this machine calls localhost is not in the box: it is behind the proxy like any other.
        self._way = {} if "OMOI_GIT_DOOR" in environ else dict.fromkeys(UNPROXIED, "")

    async def prepare(self) -> str | None:
        """Bring it here, unless an earlier start did, on its branch. Returns the commit from which the branch comes."""
        self.folder.mkdir(exist_ok=True)
        await self.run("init", "-q", "-b", self.branch)
        if self._url and not await self.head():
            await self.run("remote", "add", "origin", self._url, failing=True)
            await self._remote("fetch", "-q", "--tags", "origin")
            ours, base = [await self._ref(f"refs/remotes/origin/{name}") for name in (self.branch, self._base)]
            if start := ours or base:
                await self.run("checkout", "-q", "-f", "-B", self.branch, start)
            elif await self.run("for-each-ref", "refs/remotes"):
                raise GitFailed("checkout", f"The remote has no branch {self._base} to begin from.")
        head = await self.head()
        base = await self._ref(f"refs/remotes/origin/{self._base}") or head
        return base and head and ((await self.run("merge-base", base, head, failing=True)).strip() or head)

    async def head(self) -> str | None:
        return await self._ref("HEAD")

    async def commit(self, message: str) -> tuple[str | None, list[str]] | None:
        """Commit all that is there. None when nothing has changed since the last commit."""
        await self.run("add", "-A", "--ignore-errors", failing=True)  # what cannot be read does not keep the rest back
        files = (await self.run("diff", "--cached", "--name-only", "-z")).split("\0")[:-1]
        if not files:
            return None
        await self.run("commit", "-q", "--no-verify", "-m", message)
        return await self.head(), files

    async def push(self) -> bool:
        """Send the branch if it has commits that the remote lacks, on top of what others have pushed meanwhile."""
        if not self._url or not await self.run("log", "--format=%H", "-1", "HEAD", "--not", "--remotes", failing=True):
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

    async def run(self, *arguments: str, failing: bool = False, environ: Mapping[str, str] | None = None) -> str:
        """What it printed. When it fails: GitFailed, or "" where that is an answer too."""
        words, env = ("git", "-c", "core.hooksPath=/dev/null", *arguments), {**self._environ, **(environ or {})}
        done = await command(*words, cwd=self.folder, env=env, seconds=LONGEST_COMMAND_SECONDS, apart=True)
        if done.code and not failing:
            raise GitFailed(arguments[0], done.ended or done.err or done.out)
        return "" if done.code else done.out

    async def _rebase(self) -> None:
        await self._remote("fetch", "-q", "origin", f"+refs/heads/{self.branch}:refs/remotes/origin/{self.branch}")
        try:
            await self.run("rebase", "-q", f"refs/remotes/origin/{self.branch}")
        except GitFailed as error:
            await self.run("rebase", "--abort", failing=True)
            raise GitFailed("rebase", f"error: Others have changed {self.branch} in the same places.") from error

    async def _remote(self, *arguments: str, operation: str = "FETCH") -> None:
        gives_up = time.monotonic() + (LONGEST_ABSENCE_SECONDS if self._way else PATIENCE_SECONDS)
        for number, pause in enumerate(pauses(60.0), 1):
            try:
                await self.run(*arguments, environ={"OMOI_GIT_OPERATION": operation, **self._way})
                break
            except GitFailed as error:
                if not error.away or time.monotonic() + pause > gives_up:
                    raise
                self._say(f"{error} (try {number}, the next in {pause:.0f} s)")
            await asyncio.sleep(pause)

    async def _ref(self, name: str) -> str | None:
        return (await self.run("rev-parse", "-q", "--verify", f"{name}^{{commit}}", failing=True)).strip() or None
