"""What has yet to be told: events on disk, numbered without holes, their large texts beside them, the report last."""

import asyncio
import gzip
import hashlib
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LARGEST_SPOOL_BYTES = 256 << 20  # beyond it DROPPABLE events are not kept; the others always are
LARGEST_SEGMENT_BYTES = 1 << 20
LARGEST_TEXT_BYTES = 64 << 10  # a longer text becomes a blob
LARGEST_BLOB_BYTES = 64 << 20
LARGEST_EVENT_BYTES = 256 << 10  # if it is larger with all long texts aside, shorter ones go aside too
SMALL_TEXT_BYTES = 1 << 10
PREVIEW_BYTES = 2_000
DROPPABLE = {"THINKING", "LOG"}
PREVIEWED = {"output", "text"}


class Spool:
    """Append-only. What the server has accepted is deleted in whole segments; the newest segment stays."""

    def __init__(self, folder: Path, *, limit_bytes: int = LARGEST_SPOOL_BYTES) -> None:
        self._folder = folder
        self._blobs = folder / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._limit = limit_bytes
        self._named: dict[int, list[str]] = {}  # event -> blobs, of events that are not accepted
        self._starts = sorted(int(path.stem) for path in folder.glob("*.jsonl")) or [1]
        self.accepted = self._starts[0] - 1
        self.last = self._repair()
        self._size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.news = asyncio.Event()
        self.report: dict[str, Any] | None = None
        if (folder / "finish.json").exists():
            self.report = json.loads((folder / "finish.json").read_bytes())

    def append(self, kind: str, payload: dict[str, Any], *, source: str = "AGENT", turn: int | None = None) -> None:
        if self.report is not None or (self._size > self._limit and kind in DROPPABLE):
            return
        number = self.last + 1
        event = {"producerSeq": number, "type": kind, "source": source, "turn": turn, "occurredAt": _now()}
        line, blobs = self._encode(event, payload)
        newest = self._segment(self._starts[-1])
        if newest.exists() and newest.stat().st_size + len(line) > LARGEST_SEGMENT_BYTES:
            self._starts.append(number)
            newest = self._segment(number)
        with newest.open("ab", buffering=0) as file:
            file.write(line)
        self._size += len(line)
        self.last = number
        self._named[number] = blobs
        self.news.set()

    def finish(self, report: dict[str, Any]) -> None:
        """The last word. Nothing can be appended after it."""
        draft = self._folder / "finish.draft"
        draft.write_text(json.dumps(self._fit(report, LARGEST_BLOB_BYTES, [])))
        draft.rename(self._folder / "finish.json")
        self.report = json.loads((self._folder / "finish.json").read_bytes())
        self.news.set()

    def read(self, *, count: int, size_bytes: int) -> list[dict[str, Any]]:
        """The first events that are not accepted, with their blobs; at least one, if there is one."""
        entries: list[dict[str, Any]] = []
        for start, following in itertools.pairwise([*self._starts, self.last + 1]):
            if following <= self.accepted + 1:
                continue
            with self._segment(start).open("rb") as lines:
                for line in itertools.islice(lines, max(0, self.accepted + 1 - start), None):
                    size_bytes -= len(line)
                    if entries and (len(entries) >= count or size_bytes < 0):
                        return entries
                    entries.append(json.loads(line))
        return entries

    def accept(self, through: int) -> None:
        """The server has everything up to this number. A lower one than before is where it wants to go on."""
        through = max(min(through, self.last), self._starts[0] - 1)
        for number in range(self.accepted + 1, through + 1):
            for name in self._named.pop(number, []):
                self._drop(self._blobs / name)
        self.accepted = through
        while len(self._starts) > 1 and self._starts[1] <= through + 1:
            self._drop(self._segment(self._starts.pop(0)))

    def put_blob(self, data: bytes) -> str:
        """The name under which these bytes are sent ahead of the event or report that names them."""
        name = hashlib.sha256(data).hexdigest()
        path = self._blobs / name
        if not path.exists():
            draft = path.with_suffix(".draft")
            draft.write_bytes(gzip.compress(data, compresslevel=1, mtime=0))
            self._size += draft.rename(path).stat().st_size
        return name

    def blob(self, name: str) -> bytes | None:
        """Its gzipped bytes, or None when an accepted event has named it before: then the server has it."""
        path = self._blobs / name
        return path.read_bytes() if path.exists() else None

    def _encode(self, event: dict[str, Any], payload: dict[str, Any]) -> tuple[bytes, list[str]]:
        for limit in (LARGEST_TEXT_BYTES, SMALL_TEXT_BYTES):
            blobs: list[str] = []
            whole = {**event, "payload": self._fit(payload, limit, blobs)}
            line = json.dumps({"event": whole, "blobs": blobs}, separators=(",", ":")).encode() + b"\n"
            if len(line) <= LARGEST_EVENT_BYTES:
                break
        return line, blobs

    def _fit(self, value: Any, limit: int, blobs: list[str], name: str = "") -> Any:
        """With blobs for long texts, and without what no database keeps: NUL, and halves of surrogate pairs."""
        if isinstance(value, dict):
            return {str(key): self._fit(item, limit, blobs, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._fit(item, limit, blobs) for item in value]
        if not isinstance(value, str):
            return value
        data = value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
        if len(data) <= limit:
            return data.decode()
        if len(data) > LARGEST_BLOB_BYTES:
            return f"({len(data):,} bytes: more than can be kept)"
        blobs.append(self.put_blob(data))
        return {
            "blob": blobs[-1],
            **({"preview": data[:PREVIEW_BYTES].decode("utf-8", "ignore")} if name in PREVIEWED else {}),
        }

    def _repair(self) -> int:
        """The newest number on disk, after cutting off what a crash has left of a line."""
        newest = self._segment(self._starts[-1])
        newest.touch()
        whole = newest.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        newest.write_bytes(kept)
        self.last = self._starts[-1] + kept.count(b"\n") - 1
        for entry in self.read(count=self.last + 1, size_bytes=2 * self._limit):
            self._named[entry["event"]["producerSeq"]] = entry["blobs"]
        return self.last

    def _segment(self, start: int) -> Path:
        return self._folder / f"{start:012d}.jsonl"

    def _drop(self, path: Path) -> None:
        if path.exists():
            self._size -= path.stat().st_size
            path.unlink()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
