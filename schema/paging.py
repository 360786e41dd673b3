"""Connections as Relay describes them: pages by cursor, forwards and backwards."""

from collections.abc import Awaitable
from typing import Any, Generic, NamedTuple, TypeVar

import strawberry

from app import paging
from app.auth import REACHED
from schema.fields import Answer, Argument, field
from schema.rules import reached

Item = TypeVar("Item")


class EdgeRow(NamedTuple):
    cursor: str
    node: Any


@reached("Where a page lies in its list.")
class PageInfo:
    has_next_page: bool = strawberry.field(description="There is more behind `endCursor`.")
    has_previous_page: bool = strawberry.field(description="There is something before `startCursor`.")
    start_cursor: str | None = strawberry.field(description="The cursor of the first edge; null on an empty page.")
    end_cursor: str | None = strawberry.field(description="The cursor of the last edge; null on an empty page.")


def _edges(context: Any, page: paging.Page[Any]) -> list[EdgeRow]:
    return [EdgeRow(cursor, row) for cursor, row in zip(page.cursors, page.rows, strict=True)]


def _nodes(context: Any, page: paging.Page[Any]) -> list[Any]:
    return page.rows


def _page_info(context: Any, page: paging.Page[Any]) -> PageInfo:
    return PageInfo(
        has_next_page=page.has_next,
        has_previous_page=page.has_previous,
        start_cursor=page.cursors[0] if page.cursors else None,
        end_cursor=page.cursors[-1] if page.cursors else None,
    )


def _total_count(context: Any, page: paging.Page[Any]) -> Awaitable[int]:
    return page.count()


@reached("One object of a page, and its place.")
class Edge(Generic[Item]):
    cursor: str = strawberry.field(description="The place of this object; pages can go on from it.")
    node: Item = strawberry.field(description="The object.")


@reached("One page of a list.")
class Connection(Generic[Item]):
    edges = field(_edges, list[Edge[Item]], "The objects with their cursors.")
    nodes = field(_nodes, list[Item], "The objects alone.")
    page_info = field(_page_info, PageInfo, "Where this page lies in the list.")
    total_count = field(_total_count, int | None, "How many there are in all; counted only when asked for.")


PAGE = {
    "first": Argument(int | None, "How many from the front, 1 to 100; 20 when nothing is said.", strawberry.UNSET),
    "after": Argument(str | None, "Begin behind this cursor.", strawberry.UNSET),
    "last": Argument(int | None, "How many from the end, 1 to 100.", strawberry.UNSET),
    "before": Argument(str | None, "End before this cursor.", strawberry.UNSET),
}


def connection(answer: Answer, of: Any, description: str, **takes: Argument) -> Any:
    return field(answer, Connection[of], description, rule=REACHED, shared=False, **takes, **PAGE)
