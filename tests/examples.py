"""The examples of the docs, laid out as their users have them: a folder with its packages, and a command for each."""

import shutil
import sys
from pathlib import Path

from tests.npm import CLIENTS, running

FOLDER = Path(__file__).parents[1] / "examples"
COMMANDS = {"follow.ts": ("node", "follow.ts"), "follow.py": (sys.executable, "follow.py")}


def laid(folder: Path) -> Path:
    """A copy of the examples; the packages of the tests are those that theirs names."""
    copy = shutil.copytree(FOLDER, folder / "examples", ignore=shutil.ignore_patterns("node_modules"))
    (copy / "node_modules").symlink_to(CLIENTS / "node_modules")
    return copy


def example(name: str, sandbox_id: str, *, folder: Path, url: str, token: str, code: int = 0):
    """The example of that name, following this sandbox."""
    return running(*COMMANDS[name], sandbox_id, folder=folder, code=code, OMOI_URL=url, OMOI_TOKEN=token)
