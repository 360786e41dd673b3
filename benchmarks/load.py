"""Load from another process over keep-alive connections, cheap enough not to be what is measured."""

import asyncio
import json
import multiprocessing
import time
from dataclasses import dataclass

from benchmarks import processes
from benchmarks.processes import Measured

CONNECTIONS = 32
WARM_SECONDS = 1.0


@dataclass(frozen=True)
class Rate:
    requests: int
    seconds: float
    cpu_seconds: float

    @property
    def per_cpu_second(self) -> float:
        return self.requests / self.cpu_seconds


def measure(server: Measured, query: str, *, seconds: float, variables: object = None) -> Rate:
    """Requests answered per second of the server's own processor time."""
    request = _request(server, {"query": query, "variables": variables})
    _run(server.port, request, WARM_SECONDS)
    before, started = server.cpu_seconds, time.perf_counter()
    requests = _run(server.port, request, seconds)
    return Rate(requests, time.perf_counter() - started, server.cpu_seconds - before)


def _request(server: Measured, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = [
        "POST /graphql HTTP/1.1",
        f"host: 127.0.0.1:{server.port}",
        "content-type: application/json",
        "accept: application/json",
        f"content-length: {len(content)}",
        *([f"authorization: Bearer {server.token}"] if server.token else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


def _run(port: int, request: bytes, seconds: float) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_client, (port, request, seconds))


def _client(port: int, request: bytes, seconds: float) -> int:
    processes.step_aside()
    return asyncio.run(_all(port, request, seconds))


async def _all(port: int, request: bytes, seconds: float) -> int:
    until = time.monotonic() + seconds
    counts = await asyncio.gather(*(_one(port, request, until) for _ in range(CONNECTIONS)))
    return sum(counts)


async def _one(port: int, request: bytes, until: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while time.monotonic() < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        length = int(lower.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = await reader.readexactly(length)
        assert b" 200 " in head, head + body
        assert b'"errors"' not in body, body
        count += 1
    writer.close()
    return count
