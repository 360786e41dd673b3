"""What a box said: the newest of it, in two files of bounded size."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from orchestrator.providers.local.folder import Folder

FILE_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Log:
    folder: Folder
    size: int = 0

    def write(self, data: bytes) -> None:
        if self.size + len(data) > FILE_BYTES:
            with contextlib.suppress(FileNotFoundError):
                self.folder.log.replace(self.folder.older_log)
            self.size = 0
        with self.folder.log.open("ab") as file:
            file.write(data)
        self.size += len(data)

    def say(self, text: str) -> None:
        """A line of the keeper's own, between those of the worker."""
        self.write(f"omoi: {text}\n".encode(errors="backslashreplace"))


def tail(folder: Folder, lines: int) -> str:
    text = b"".join(_content(path) for path in (folder.older_log, folder.log)).decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""


def _content(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return b""
