"""What has yet to be told: events on disk, numbered without holes, their large texts beside them, the report last."""

import asyncio
import gzip
import hashlib
import json
import math
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LARGEST_SPOOL_BYTES = 256 << 20  # beyond it DROPPABLE events are not kept; the others always are
LARGEST_TEXT_BYTES = 64 << 10  # a longer text becomes a blob
LARGEST_BLOB_BYTES = 64 << 20
PREVIEW_BYTES = 4 << 10  # of a text that the server does not take
DROPPABLE = {"THINKING", "LOG"}
SIZE = """SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count() JOIN pragma_freelist_count() JOIN pragma_page_size()"""
TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;  -- the end of the process loses nothing; the end of the machine ends the attempt anyway
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (name TEXT PRIMARY KEY, zipped BLOB NOT NULL);
"""


class Spool:
    """What the server has is deleted; numbers go on all the same, also in a new process."""

    def __init__(self, folder: Path, *, limit_bytes: int = LARGEST_SPOOL_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / "spool.db", isolation_level=None)
        self._db.executescript(TABLES)
        self._limit = limit_bytes
        self.last = int((self._one("SELECT seq FROM sqlite_sequence") or [0])[0])
        self.news = asyncio.Event()
        self._report = folder / "finish.json"
        self.report: dict[str, Any] | None = json.loads(self._report.read_bytes()) if self._report.exists() else None

    def append(self, kind: str, payload: dict[str, Any], *, source: str = "AGENT", turn: int | None = None) -> None:
        if self.report is not None or (kind in DROPPABLE and self._one(SIZE)[0] > self._limit):
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {"producerSeq": self.last + 1, "type": kind, "source": source, "turn": turn, "occurredAt": now}
        text = json.dumps({**event, "payload": self._fit(payload, LARGEST_TEXT_BYTES)})
        self._db.execute("INSERT INTO events VALUES (?, ?)", (self.last + 1, text))
        self.last += 1
        self.news.set()

    def finish(self, report: dict[str, Any]) -> None:
        self.report = self._fit(report, LARGEST_BLOB_BYTES)
        draft = self._report.with_suffix(".draft")
        draft.write_text(json.dumps(self.report))
        draft.rename(self._report)
        self.news.set()

    def read(self, *, count: int, size_bytes: int) -> list[dict[str, Any]]:
        """The first events that are not accepted; at least one, if there is one."""
        events: list[dict[str, Any]] = []
        for (text,) in self._db.execute("SELECT event FROM events ORDER BY number LIMIT ?", (count,)):
            size_bytes -= len(text)
            if events and size_bytes < 0:
                break
            events.append(json.loads(text))
        return events

    def accept(self, through: int) -> None:
        self._db.execute("DELETE FROM events WHERE number <= ?", (through,))

    def leave_out(self, event: dict[str, Any], why: str) -> None:
        kind = event["type"]
        told = {"text": f"{kind} was left out: {why}", "level": "warning", "leftOut": kind}
        self._change(event | {"type": "LOG", "source": "WORKER", "turn": None, "payload": told})

    def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        zipped = gzip.compress(data, compresslevel=1, mtime=0)
        self._db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (name, zipped))
        return name

    def blob(self) -> Any:
        """The first that the server does not have: its name and its gzipped bytes."""
        return self._one("SELECT name, zipped FROM blobs ORDER BY rowid LIMIT 1")

    def drop_blob(self, name: str) -> None:
        self._db.execute("DELETE FROM blobs WHERE name = ?", (name,))

    def cut(self, name: str, why: str) -> None:
        """The server will never take this blob: who names it has the beginning of it instead, and says so."""
        data = gzip.decompress(self._one("SELECT zipped FROM blobs WHERE name = ?", name)[0])
        text = data[:PREVIEW_BYTES].decode("utf-8", "ignore")
        for (written,) in self._db.execute("SELECT event FROM events WHERE instr(event, ?)", (name,)).fetchall():
            event = json.loads(written, object_hook=lambda found: text if found == {"blob": name} else found)
            told = {"sizeBytes": len(data), **event["payload"], "truncated": True, "reason": why}
            self._change(event | {"payload": told})
        if self.report and self.report.get("transcriptBlob") == name:
            self.finish(self.report | {"transcriptBlob": None})
        self.drop_blob(name)

    def _change(self, event: dict[str, Any]) -> None:
        self._db.execute("UPDATE events SET event = ? WHERE number = ?", (json.dumps(event), event["producerSeq"]))

    def _fit(self, value: Any, limit: int) -> Any:
        """With blobs for long texts, and without what nobody keeps: NUL, halves of surrogate pairs, endless numbers."""
        if isinstance(value, dict):
            return {str(key): self._fit(item, limit) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._fit(item, limit) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if not isinstance(value, str):
            return value
        data = value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
        if len(data) > LARGEST_BLOB_BYTES:
            return f"({len(data):,} bytes: more than can be kept)"
        return data.decode() if len(data) <= limit else {"blob": self.put_blob(data)}

    def _one(self, statement: str, *given: Any) -> Any:
        return self._db.execute(statement, given).fetchone()
