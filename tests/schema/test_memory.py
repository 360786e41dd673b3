"""A subscription may live for months: what it holds does not grow with its events."""

import gc

import pytest
from graphql import parse, subscribe

from app.auth import NOBODY
from schema.answers import Answers, Caller, read
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
    operation, variables = documents.operation(DOCUMENT, None), {"to": LAST + 1}
    seen, objects = 0, {}
    async for event in await execution.open(operation, variables, make_context()):
        assert (await execution.event(operation, variables, make_context, event)).errors is None
        seen += 1
        if seen in {FIRST, LAST}:
            gc.collect()
            objects[seen] = len(gc.get_objects())
    assert seen == LAST + 1
    assert objects[LAST] - objects[FIRST] < 200


async def test_leaving_closes_the_source_at_once():
    """Who stops listening has ended the source when that is done, not when the collector finds it."""
    one = toy.Toy()
    answers = Answers(toy.schema(), toy.Settings(), one.make_context, None)
    request = read({"query": "subscription { forever }"})
    events = answers.stream(answers.prepare(request, NOBODY), request, Caller(NOBODY, "-"))
    await anext(events)
    assert one.streams == 1
    await events.aclose()
    assert one.streams == 0


async def test_events_are_what_subscribe_would_make_of_them(running):
    """Executing each event anew gives the results, errors included, that the specification's own loop gives."""
    schema, documents, execution, make_context = running
    text = "subscription { ticks(to: 4) { number odd item { number } } }"
    operation = documents.operation(text, None)
    source = await execution.open(operation, None, make_context())
    ours = [await execution.event(operation, None, make_context, event) async for event in source]
    theirs = [result async for result in await subscribe(schema, parse(text), context_value=make_context())]
    assert [result.formatted for result in ours] == [result.formatted for result in theirs]
