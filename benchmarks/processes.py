"""Server processes to measure, and how much processor time each has used."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

OMOI = Path(sys.executable).parent / "omoi"
START_SECONDS = 60
QUIET = {"OMOI_PRODUCTION": "1", "ORCHESTRATOR_ENABLED": "false"}


@dataclass
class Measured:
    """A process that serves, pinned to one core where the system can do that."""

    process: psutil.Process
    port: int
    token: str = ""
    data: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/graphql"

    @property
    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    @property
    def megabytes(self) -> float:
        return self.process.memory_info().rss / 1e6


@contextlib.contextmanager
def omoi(**env: str) -> Iterator[Measured]:
    """A whole `omoi up` on an empty data folder, with the settings that a newcomer has."""
    with tempfile.TemporaryDirectory(prefix="omoi-") as data:
        env = {**os.environ, "OMOI_DATA": data, **QUIET, **env}
        with _running([str(OMOI), "up", "--port", "0"], env) as (process, port):
            command = [str(OMOI), "token", "create"]
            token = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()
            yield Measured(process, port, token, data)


@contextlib.contextmanager
def peer(module: str, **env: str) -> Iterator[Measured]:
    """Another server to compare with: a module of this folder that prints its address."""
    with _running([sys.executable, "-m", f"benchmarks.{module}"], {**os.environ, **env}) as (process, port):
        yield Measured(process, port)


@contextlib.contextmanager
def _running(command: list[str], env: dict[str, str]) -> Iterator[tuple[psutil.Process, int]]:
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        try:
            process = psutil.Process(child.pid)
            if hasattr(process, "cpu_affinity"):
                process.cpu_affinity([0])
            yield process, _port(child)
        finally:
            child.terminate()
            child.wait(30)


def _port(child: subprocess.Popen[str]) -> int:
    assert child.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and (line := child.stdout.readline()):
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise SystemExit(f"{child.args} did not start")
