"""What waits for what, for tickets and for tasks alike: edges within one project that never close a cycle."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import DependencyCycle, InvalidInput, NotFound

EDGES_OF_A_NODE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """A table of edges: `waits` cannot go on before `needs` has ended."""

    table: Any
    waits: str
    needs: str
    nodes: Any  # the table that both ends are in
    argument: str  # what the input calls the list of needed ids

    @property
    def waits_column(self) -> Any:
        return getattr(self.table, self.waits)

    @property
    def needs_column(self) -> Any:
        return getattr(self.table, self.needs)


async def replace(session: AsyncSession, edges: Edges, *, project_id: UUID, node: UUID, needs: Sequence[UUID]) -> bool:
    """Let `node` need exactly these; True when that is a change. The project's row must be locked by the caller."""
    wanted = set(needs)
    if len(wanted) > EDGES_OF_A_NODE:
        raise InvalidInput(
            f"{edges.argument} has {len(wanted)} entries; {EDGES_OF_A_NODE} is the most.", path=[edges.argument]
        )
    await _require_in_project(session, edges, project_id, needs)
    before = set(await session.scalars(select(edges.needs_column).where(edges.waits_column == node)))
    if before == wanted:
        return False
    await _require_no_cycle(session, edges, project_id, node, wanted)
    await session.execute(
        delete(edges.table).where(edges.waits_column == node, edges.needs_column.in_(before - wanted))
    )
    added = [{"project_id": project_id, edges.waits: node, edges.needs: other} for other in wanted - before]
    if added:
        await session.execute(insert(edges.table), added)
    return True


async def neighbours(
    session: AsyncSession, edges: Edges, nodes: Sequence[UUID], *, backwards: bool = False
) -> Mapping[UUID, list[Any]]:
    """For each node the rows it needs; backwards, the rows that need it."""
    near, far = edges.waits_column, edges.needs_column
    if backwards:
        near, far = far, near
    found = await session.execute(
        select(near, edges.nodes)
        .join(edges.nodes, edges.nodes.id == far)
        .where(near.in_(nodes))
        .order_by(edges.nodes.id)
    )
    grouped = defaultdict(list)
    for node, row in found:
        grouped[node].append(row)
    return grouped


async def _require_in_project(session: AsyncSession, edges: Edges, project_id: UUID, needs: Sequence[UUID]) -> None:
    """An id of another project answers like an id of nothing."""
    if not needs:
        return
    found = set(
        await session.scalars(
            select(edges.nodes.id).where(edges.nodes.project_id == project_id, edges.nodes.id.in_(needs))
        )
    )
    for place, one in enumerate(needs):
        if one not in found:
            raise NotFound(path=[edges.argument, str(place)])


async def _require_no_cycle(
    session: AsyncSession, edges: Edges, project_id: UUID, node: UUID, wanted: Collection[UUID]
) -> None:
    if not wanted:
        return
    needs = defaultdict(list)
    rows = await session.execute(
        select(edges.waits_column, edges.needs_column).where(edges.table.project_id == project_id)
    )
    for waiting, needed in rows:
        needs[waiting].append(needed)
    needs[node] = sorted(wanted)
    if path := _path_back(needs, node):
        raise DependencyCycle("This would make it wait for itself.", path=[edges.argument], details={"cycle": path})


def _path_back(needs: Mapping[UUID, Sequence[UUID]], start: UUID) -> list[UUID]:
    """The nodes from `start` back to itself, both ends named; empty when there is no way."""
    came_from: dict[UUID, UUID] = {}
    open_nodes = [start]
    while open_nodes:
        here = open_nodes.pop()
        for there in needs.get(here, ()):
            if there == start:
                path = [start, here]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1] if len(path) > 2 else [start, start]
            if there not in came_from:
                came_from[there] = here
                open_nodes.append(there)
    return []
