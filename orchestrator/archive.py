"""The worker as one file that a sandbox can run."""

import functools
import io
import zipfile
from pathlib import Path

WORKER = Path(__file__).parents[1] / "worker"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


@functools.cache
def worker_archive() -> bytes:
    """A zip that `python worker.pyz` runs. It is read, never imported: the worker does not run here."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(WORKER.glob("*.py")):
            names = [f"worker/{path.name}", *(["__main__.py"] if path.name == "__main__.py" else [])]
            for name in names:
                entry = zipfile.ZipInfo(name, LONG_AGO)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return packed.getvalue()
