"""The data folder of the embedded PostgreSQL: who owns it, where its socket is, what is in it.

Two locks say who lives, and the kernel frees both, whatever the end: the owner alone holds `omoi.lock`; every process
of PostgreSQL inherits `postgres.lock`, so that who gets it knows that none is left and each trace of one is stale.
"""

import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from app.errors import CannotStart

MAJOR: Final = "18"  # of PostgreSQL
PORT: Final = 5432  # never a real port, only a part of the socket's name
SOCKET: Final = f".s.PGSQL.{PORT}"
SOCKET_PATH_BYTES: Final = 103  # what fits into sockaddr_un: 107 on Linux, 103 on macOS
LOG_BYTES: Final = 4 << 20


def owner_lock(data: Path) -> Path:
    return data / "omoi.lock"


def server_lock(data: Path) -> Path:
    return data / "postgres.lock"


def try_lock(file: Path) -> int | None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise CannotStart(
            f"{file} cannot be locked: {error.strerror}. Choose a local folder with OMOI_DATA."
        ) from error
    return descriptor


def read_claim(data: Path) -> dict[str, Any]:
    """Who says that the folder is theirs. Nobody when the file is missing, empty, just being written, or a copy."""
    file = owner_lock(data)
    try:
        claim: dict[str, Any] = json.loads(file.read_text())
        return claim if claim["inode"] == file.stat().st_ino else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def write_claim(lock: int, claim: dict[str, Any]) -> None:
    content = json.dumps(claim | {"inode": os.fstat(lock).st_ino}).encode()
    os.pwrite(lock, content, 0)
    os.ftruncate(lock, len(content))


def choose_socket_folder(data: Path, earlier: str | None) -> Path:
    """A private folder whose path is short enough: in the data folder, else where temporary files are.

    An earlier one that its owner could not remove is used again.
    """
    inside = data / "socket"
    if _fits(inside) and "," not in str(inside):  # a comma separates hosts in URLs
        inside.mkdir(mode=0o700, exist_ok=True)
        if _is_private(inside):
            return inside
    if earlier and _is_private(Path(earlier)):
        return Path(earlier)
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - only for a folder that mkdtemp makes
        folder = Path(tempfile.mkdtemp(prefix="omoi-", dir=parent))
        if _fits(folder):
            return folder
        folder.rmdir()
    raise CannotStart(
        f"No folder has a path short enough for a socket. Choose a shorter one than {data} with OMOI_DATA."
    )


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / SOCKET)) <= SOCKET_PATH_BYTES


def _is_private(folder: Path) -> bool:
    try:
        found = folder.stat(follow_symlinks=False)
    except OSError:
        return False
    return folder.is_dir() and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def check_cluster(cluster: Path) -> None:
    if cluster.stat().st_uid != os.geteuid():
        raise CannotStart(f"The database in {cluster} belongs to another user. Run as that user, or set OMOI_DATA.")
    version = (cluster / "PG_VERSION").read_text().strip()
    if version != MAJOR:
        raise CannotStart(
            f"The database in {cluster} is of PostgreSQL {version}, and this is {MAJOR}. Choose another folder with "
            f"OMOI_DATA, or move the data with pg_dump of version {version}."
        )


def move_into_place(fresh: Path, cluster: Path) -> None:
    try:
        fresh.rename(cluster)
    except OSError as error:
        raise CannotStart(f"{cluster} is there but holds no database. Move it away, then start again.") from error
    folder = os.open(cluster.parent, os.O_RDONLY)
    os.fsync(folder)  # or a power cut could bring back the old name after the first commits
    os.close(folder)


def remove(leftover: Path) -> None:
    if leftover.is_dir():
        shutil.rmtree(leftover)
    else:
        leftover.unlink(missing_ok=True)


def rotate_log(file: Path) -> int:
    """Keep two logs of bounded size. Returns where the next line goes."""
    file.touch(mode=0o600)
    if (size := file.stat().st_size) < LOG_BYTES:
        return size
    file.replace(file.with_suffix(".log.1"))
    file.touch(mode=0o600)
    return 0


def tail(file: Path, offset: int) -> bytes:
    with file.open("rb") as log:
        log.seek(max(offset, file.stat().st_size - (64 << 10)))
        return log.read()
