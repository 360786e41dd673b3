"""What a push asks for: the commands at the head of its request, read before git is given any of it."""

import re

from app.errors import Forbidden

HEAD_BYTES = 64 << 10
LENGTH_BYTES = 4
LENGTH = re.compile(rb"[0-9a-f]{4}", re.IGNORECASE)
COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) (.+)", re.DOTALL)
SHALLOW = re.compile(rb"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")


class PushRefused(Forbidden):
    """A push that touches more than it may."""


class Push:
    """Lets through a push to one branch, and no byte of any other."""

    def __init__(self, branch: str) -> None:
        self._branch = branch
        self._ref = f"refs/heads/{branch}".encode()
        self._head = bytearray()
        self._read = 0
        self._allowed = False

    @property
    def allowed(self) -> bool:
        """All commands were read, and each of them may be done."""
        return self._allowed

    def feed(self, chunk: bytes) -> bytes:
        """What git may be given now: nothing until all commands were read, and from then on every chunk as it is."""
        if self._allowed:
            return chunk
        self._head += chunk
        while not self._allowed and (line := self._line()) is not None:
            self._check(line)
        if not self._allowed and len(self._head) > HEAD_BYTES:
            raise PushRefused("This push names more than one branch can have.")
        return bytes(self._head) if self._allowed else b""

    def _line(self) -> bytes | None:
        """The next whole line; None until it is there. The end of the commands is a line of no length."""
        length = bytes(self._head[self._read : self._read + LENGTH_BYTES])
        if len(length) < LENGTH_BYTES:
            return None
        size = int(length, 16) if LENGTH.fullmatch(length) else 1
        if size == 0:
            self._allowed = True
            return None
        if size <= LENGTH_BYTES:
            raise PushRefused("This is no push that git makes.")
        if len(self._head) < self._read + size:
            return None
        line = bytes(self._head[self._read + LENGTH_BYTES : self._read + size])
        self._read += size
        return line.removesuffix(b"\n")

    def _check(self, line: bytes) -> None:
        """Git reads a line up to its first NUL; behind that stand the client's abilities."""
        line = line.partition(b"\0")[0]
        if SHALLOW.fullmatch(line):
            return
        command = COMMAND.fullmatch(line)
        if command is None:
            raise PushRefused("This is no push that git makes.")
        _, new, ref = command.groups()
        if ref != self._ref:
            named = ref.decode("utf-8", "replace").removeprefix("refs/heads/")
            raise PushRefused(f"This sandbox may push its branch {self._branch}, and not {named}.")
        if not new.strip(b"0"):
            raise PushRefused(f"The branch {self._branch} cannot be deleted by a push.")
