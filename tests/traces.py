"""What sandboxes leave on this machine, and what can be seen of them from outside: processes, control groups, files."""

import asyncio
import contextlib
import gzip
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select

from app.models import Base

CGROUPS = Path("/sys/fs/cgroup")
SAMPLE_SECONDS = 0.05


def processes(*words: str) -> list[str]:
    """The command line of each process that has one of these words in its arguments or its environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes()
            said = line + b"\0" + (path / "environ").read_bytes()
            if any(word.encode() in said for word in words):
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def groups(start: str) -> list[Path]:
    """The control groups whose names begin so."""
    return [path for path in CGROUPS.rglob(f"{start}*") if path.is_dir()]


def files(folder: Path, *words: str) -> list[Path]:
    """The files below a folder in which one of these words stands, as far as they stay there meanwhile."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and any(word.encode() in path.read_bytes() for word in words):
                found.append(path)
    return found


@contextlib.asynccontextmanager
async def sampled(look: Callable[[], object]):
    """Looks again and again while the block runs; the list has everything that was seen."""
    seen: list[object] = []

    async def looking():
        while True:
            seen.append(await asyncio.to_thread(look))
            await asyncio.sleep(SAMPLE_SECONDS)

    task = asyncio.create_task(looking())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stored(db) -> list[bytes]:
    """Every value in the database; what is packed is also there unpacked."""
    async with db.reading() as session:
        rows = [row for table in Base.metadata.sorted_tables for row in await session.execute(select(table))]
    values = [value for row in rows for value in row]
    found = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    for value in found[:]:
        with contextlib.suppress(OSError):
            found.append(gzip.decompress(value))
    return found
