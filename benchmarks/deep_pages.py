"""Pages of a million tickets: page 1,000 beside page 1. Goal: within 1.3 times."""

import statistics
import time

from benchmarks import rows
from benchmarks.processes import Measured, omoi

TICKETS = 1_000_000
SIZE = 100
DEEP = 1_000
ROUNDS = 200
GOAL = 1.3
PAGE = """query($id: ID!, $after: String) { project(id: $id) { tickets(first: 100, after: $after) {
    nodes { id number title status } pageInfo { endCursor } } } }"""


def main() -> None:
    with omoi() as server:
        project_id = rows.project(server)
        rows.many(server, rows.TICKETS, project_id, first=1, last=TICKETS)
        deep = _cursor(server, project_id, pages=DEEP - 1)
        first_ms, deep_ms = _alternate(server, project_id, (None, deep))
        print(
            f"page 1: {first_ms:.2f} ms   page {DEEP}: {deep_ms:.2f} ms   of {TICKETS} tickets, "
            f"ratio {deep_ms / first_ms:.2f}, goal {GOAL}"
        )


def _cursor(server: Measured, project_id: str, *, pages: int) -> str | None:
    after = None
    for _ in range(pages):
        after = rows.ask(server, PAGE, id=project_id, after=after)["project"]["tickets"]["pageInfo"]["endCursor"]
    return after


def _alternate(server: Measured, project_id: str, cursors: tuple[str | None, ...]) -> list[float]:
    """Medians, each page asked in turn, so that a noisy moment strikes them alike."""
    times: list[list[float]] = [[] for _ in cursors]
    for _ in range(ROUNDS):
        for cursor, taken in zip(cursors, times, strict=True):
            started = time.perf_counter()
            nodes = rows.ask(server, PAGE, id=project_id, after=cursor)["project"]["tickets"]["nodes"]
            taken.append((time.perf_counter() - started) * 1000)
            assert len(nodes) == SIZE
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    main()
