"""The folder of one sandbox: what lies where, and what its files say about it after everybody has gone."""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME_BYTES = 4


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def etc(self) -> Path:
        """The few files of /etc that are made for the box."""
        return self.path / "etc"

    @property
    def order(self) -> Path:
        """Whose it is. What the worker is told is secret, and stands in no file."""
        return self.path / "order.json"

    @property
    def state(self) -> Path:
        """Who keeps it, and how far it came."""
        return self.path / "state.json"

    @property
    def end(self) -> Path:
        """How it ended: the last thing that its keeper writes."""
        return self.path / "end.json"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def older_log(self) -> Path:
        return self.path / "log.1"

    @property
    def lock(self) -> Path:
        """Held by the keeper for as long as it lives."""
        return self.path / "keeper.lock"


def try_lock(path: Path) -> int | None:
    """A descriptor that holds this lock until it is closed; None when somebody else holds it, or the folder is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if _is_same(descriptor, path):
        return descriptor
    os.close(descriptor)  # its last holder removed it
    return None


def hold(path: Path, stack: contextlib.ExitStack) -> bool:
    """Have the lock until the stack is left, when its file goes too; False when somebody else has it."""
    descriptor = try_lock(path)
    if descriptor is None:
        return False
    stack.callback(os.close, descriptor)
    stack.callback(path.unlink, missing_ok=True)
    return True


def is_locked(path: Path) -> bool:
    """Whether somebody holds it. Those who ask do not stand in each other's way."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, whoever reads or dies meanwhile; once it returns, a power cut takes nothing of it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    keep(path.parent)


def named_once(path: Path) -> str:
    """The name that this file holds; whoever asks first draws it."""
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        with fresh.open("w") as file:
            file.write(secrets.token_hex(NAME_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
        fresh.unlink()
        keep(path.parent)
    return path.read_text()


def keep(folder: Path) -> None:
    """The names in this folder outlive a power cut from now on."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> dict[str, Any] | None:
    """None when it is not there, or cannot be read: a disk may lose what it promised to keep."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return dict(json.loads(path.read_bytes()))
    return None


def is_spoilt(path: Path) -> bool:
    """It was written, and says nothing."""
    return path.is_file() and read(path) is None


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
