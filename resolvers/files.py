"""Answers about what became of the files in a sandbox."""

from typing import Any

from app import files, reported
from app.enums import FileChangeKind
from app.errors import LimitReached
from app.files import Change, Place, Told
from app.models import Sandbox
from resolvers.context import Context

NEVER_CAME = "(This was announced as a blob, and the blob was never uploaded.)"


async def changes_of(context: Context, sandbox: Sandbox, at: int | None = None) -> list[Change]:
    place = Place(sandbox.id, files.NOW if at is None else at)
    found: list[Change] | LimitReached | None = await context.loaders.histories.changes.load(place)
    if isinstance(found, LimitReached):
        raise found
    return found or []


def edit_of(context: Context, entry: Any) -> Change:
    return files.edit(entry.row)


async def text_of(context: Context, text: str | reported.Blob) -> str:
    """Text as it stands, or out of the blob that holds it."""
    if isinstance(text, str):
        return text
    content: bytes | None = await context.loaders.histories.blobs.load(text)
    return NEVER_CAME if content is None else content.decode("utf-8", "replace")


async def diff_of(context: Context, change: Change) -> str:
    return await text_of(context, change.diff)


def path_of(context: Context, change: Change) -> str:
    return reported.text(change.event.payload, "path")


async def kind_of(context: Context, change: Change) -> FileChangeKind:
    if change.net:
        return (await _told(context, change)).kind
    return reported.word(change.event.payload, "kind", FileChangeKind) or FileChangeKind.MODIFIED


async def previous_path_of(context: Context, change: Change) -> str | None:
    if change.net:
        return (await _told(context, change)).previous_path
    return reported.line(change.event.payload, "previousPath")


async def additions_of(context: Context, change: Change) -> int:
    if change.net:
        return (await _told(context, change)).additions
    return reported.number(change.event.payload, "additions") or 0


async def deletions_of(context: Context, change: Change) -> int:
    if change.net:
        return (await _told(context, change)).deletions
    return reported.number(change.event.payload, "deletions") or 0


def size_of(context: Context, change: Change) -> int:
    return reported.number(change.event.payload, "sizeBytes") or 0


def is_binary(context: Context, change: Change) -> bool:
    return reported.truth(change.event.payload, "binary")


async def size_of_transcript(context: Context, sandbox: Sandbox) -> int:
    size: int = await context.loaders.histories.transcript_sizes.load(sandbox.id)
    return size


async def transcript_of(context: Context, sandbox: Sandbox) -> Sandbox | None:
    """A transcript is told by the sandbox's own columns, once it has one."""
    size = await context.loaders.histories.transcript_sizes.load(sandbox.id)
    return None if size is None else sandbox


async def lines_of_transcript(context: Context, sandbox: Sandbox) -> str:
    assert sandbox.transcript is not None
    return await text_of(context, reported.Blob(sandbox.id, sandbox.transcript))


async def _told(context: Context, change: Change) -> Told:
    return files.read(await text_of(context, change.diff))
