"""A subscription may live for months: what it holds does not grow with its events."""

import gc

import pytest
from graphql import parse, subscribe

from schema.execution import Documents, Execution
from tests.schema import toy

# An event of graphql-core's own `subscribe` (3.3.2) leaves its selections in the executor, which lives as long as
# the subscription: 30 tracked objects and 2.6 kB for this document, 75 MB after a working day of one event a second.
DOCUMENT = "subscription ($to: Int!) { ticks(to: $to) { number item { number child { number } } } }"
FIRST, LAST = 1_000, 21_000


@pytest.fixture
def running():
    schema = toy.schema()._schema
    settings = toy.Settings()
    one = toy.Toy()

    def make_context():
        return one.make_context(principal=None, request_id="-", resume_after=None)

    return schema, Documents(schema, settings), Execution(schema, settings), make_context


async def test_events_leave_nothing_behind(running):
    """Between the thousandth event and the one twenty thousand later, next to no object is added."""
    _, documents, execution, make_context = running
    operation = documents.operation(DOCUMENT, None)
    seen, objects = 0, {}
    async for event in execution.stream(operation, {"to": LAST + 1}, make_context):
        assert event.result.errors is None
        seen += 1
        if seen in {FIRST, LAST}:
            gc.collect()
            objects[seen] = len(gc.get_objects())
    assert seen == LAST + 1
    assert objects[LAST] - objects[FIRST] < 200


async def test_leaving_closes_the_source_at_once(running):
    """Who stops listening has ended the source when that is done, not when the collector finds it."""
    _, documents, execution, _ = running
    one = toy.Toy()
    events = execution.stream(
        documents.operation("subscription { forever }", None),
        None,
        lambda: one.make_context(principal=None, request_id="-", resume_after=None),
    )
    await anext(events)
    assert one.streams == 1
    await events.aclose()
    assert one.streams == 0


async def test_events_are_what_subscribe_would_make_of_them(running):
    """Executing each event anew gives the results, errors included, that the specification's own loop gives."""
    schema, documents, execution, make_context = running
    text = "subscription { ticks(to: 4) { number odd item { number } } }"
    ours = [event.result async for event in execution.stream(documents.operation(text, None), None, make_context)]
    theirs = [result async for result in await subscribe(schema, parse(text), context_value=make_context())]
    assert [result.formatted for result in ours] == [result.formatted for result in theirs]
