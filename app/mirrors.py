"""Mirrors of repositories that no sandbox can reach: fetched when one is asked for, pushed onward while it is written.

A push counts when the origin has taken it: the mirror's own hook pushes onward, and its word is git's answer. Whatever
ends in between, the mirror has nothing that the origin lacks, and the next fetch brings what the origin has more.
"""

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from app import programs
from app.errors import RepositoryRefused, Unavailable
from app.models import Project
from app.remotes import Distant

AT_ONCE = 8  # in one process; of one mirror never two
FETCH_SECONDS = 600.0
TIDY_SECONDS = 120.0
SAID_BYTES = 4096
SAID_LINES = 4
IDENTITY = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME")  # by which ssh knows who this server is
SSH = (
    "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ForwardAgent=no -o ClearAllForwardings=yes -o ControlMaster=no "
    "-o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
)
CONFIG = {
    "advice.pushUpdateRejected": "false",
    "fetch.recurseSubmodules": "false",
    "gc.autoDetach": "false",
    "push.recurseSubmodules": "no",
}
HOOK = """#!/bin/sh
# A push to this mirror counts when its origin has taken it. What git says here, the sandbox hears.
while read -r old new ref; do
    git push -q --no-verify "$OMOI_ORIGIN" "$new:$ref" || exit 1
done
"""
AWAY = re.compile(
    r"not resolve|unable to look up|onnection (refused|reset|timed out|closed)|No route to host|unreachable|timed out"
    r"|early EOF|hung up unexpectedly|lost connection|Broken pipe"
)
LOCKED = re.compile(r"\.lock|cannot lock ref")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A git folder as the door serves it, and what git needs there besides."""

    folder: Path
    config: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fetched: float = float("-inf")  # when the last fetch that succeeded had begun


class Mirrors:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _Known] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def fresh(self, project: Project, remote: Distant, *, within_seconds: float = 0.0) -> Served:
        """The mirror as its origin was when this was asked, or so long before.

        Unavailable: the origin is away. RepositoryRefused: it does not let this server in, or is not there.
        """
        mirror = self._folder / f"{project.id}-{hashlib.sha256(remote.address.encode()).hexdigest()[:12]}.git"
        known = self._known.setdefault(mirror.name, _Known())
        asked = time.monotonic() - within_seconds
        async with known.lock:
            if known.fetched <= asked or not _is_whole(mirror):
                began = time.monotonic()
                async with self._room:
                    await self._fetch(project, remote, mirror)
                known.fetched = began
        if not os.access(_hook(mirror), os.X_OK):  # git passes over a hook that cannot run, and nothing went onward
            raise Unavailable(f"Programs cannot be run in {self._folder}: a push could not go on from there.")
        return Served(
            folder=mirror, config={**CONFIG, "core.hooksPath": str(_hook(mirror).parent)}, env=_environment(remote)
        )

    async def _fetch(self, project: Project, remote: Distant, mirror: Path) -> None:
        if not _is_whole(mirror):
            await self._make(project, mirror)
        words = ("fetch", "-q", "--prune", "--no-write-fetch-head", "--no-auto-maintenance", remote.address)
        refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        code, said = await _git(*words, *refs, cwd=mirror, remote=remote, seconds=FETCH_SECONDS)
        if code and LOCKED.search(said):  # a push of this moment has it, or a machine that died has left it
            _unlock(mirror)
            code, said = await _git(*words, *refs, cwd=mirror, remote=remote, seconds=FETCH_SECONDS)
        if code:
            raise _failure(remote, said)
        code, said = await _git("gc", "-q", "--auto", cwd=mirror, remote=remote, seconds=TIDY_SECONDS)
        if code:
            log.warning("mirror_not_tidied", project=str(project.id), said=said)

    async def _make(self, project: Project, mirror: Path) -> None:
        """An empty one; its hook comes last. What was mirrored for this project before is thrown away."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for old in self._folder.glob(f"{project.id}-*"):
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
        words = ("init", "-q", "--bare", "--template=", f"--initial-branch={project.default_branch}", str(mirror))
        code, said = await _git(*words, cwd=self._folder, remote=None, seconds=TIDY_SECONDS)
        if code:
            raise Unavailable(f"The server could not make its mirror: {said}")
        hook = _hook(mirror)
        hook.parent.mkdir()
        hook.write_text(HOOK)
        hook.chmod(0o700)


def _hook(mirror: Path) -> Path:
    return mirror / "hooks" / "pre-receive"


def _is_whole(mirror: Path) -> bool:
    """Made to its end, and by this version."""
    try:
        return _hook(mirror).read_text() == HOOK
    except OSError:
        return False


def _unlock(mirror: Path) -> None:
    """Nobody holds a lock longer than git may run here."""
    for lock in mirror.rglob("*.lock"):
        with suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime > FETCH_SECONDS:
                lock.unlink()


def _failure(remote: Distant, said: str) -> Unavailable | RepositoryRefused:
    may_pass = bool(AWAY.search(said) or LOCKED.search(said) or not said)
    log.warning("mirror_not_fetched", host=remote.host, may_pass=may_pass, said=said)
    if may_pass:
        return Unavailable(f"The server cannot fetch from {remote.host} now. {said}")
    return RepositoryRefused(f"{remote.host} does not hand out this repository to the server. {said}")


def _environment(remote: Distant | None) -> dict[str, str]:
    """The server's own identity, nobody to ask, and no way to a repository but the two that are meant."""
    return {
        **{name: os.environ[name] for name in IDENTITY if name in os.environ},
        "GIT_ALLOW_PROTOCOL": "ssh:git",
        "GIT_SSH_COMMAND": f"{os.environ.get('GIT_SSH_COMMAND') or 'ssh'} {SSH}",
        "GIT_TERMINAL_PROMPT": "0",
        "OMOI_ORIGIN": remote.address if remote else "",
    }


async def _git(*words: str, cwd: Path, remote: Distant | None, seconds: float) -> tuple[int, str]:
    """How it ended, and its last words. It speaks to a file: what ssh leaves in the background holds up nothing."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": str(len(CONFIG)),
        **_environment(remote),
    }
    for place, (key, value) in enumerate(CONFIG.items()):
        env |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            "git", *words, cwd=cwd, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=said, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            return 1, f"It timed out after {seconds:.0f} s."
        finally:
            await programs.end(process)
        size = os.fstat(said.fileno()).st_size
        text = os.pread(said.fileno(), SAID_BYTES, max(0, size - SAID_BYTES)).decode("utf-8", "replace")
        said_first = text.strip().partition("\n\n")[0]  # what follows is advice for whoever sits there
        return code, " ".join(said_first.splitlines()[-SAID_LINES:])
