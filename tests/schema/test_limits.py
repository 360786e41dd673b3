"""What a document may ask for, and that asking for more is refused before it costs anything."""

import pytest

from schema.errors import CostExceeded
from schema.execution import DOCUMENTS, DOCUMENTS_TOKENS, Documents, Execution
from schema.limits import PAGE_DEFAULT, Limits
from tests.schema import attacks, toy

SETTINGS = toy.Settings()
GRAPH = toy.schema()._schema


@pytest.fixture
def documents():
    return Documents(GRAPH, SETTINGS)


async def ask(served, client, query, variables=None):
    response = await client.post(served.url, json={"query": query, "variables": variables})
    return [error["extensions"]["code"] for error in response.json().get("errors", [])]


@pytest.mark.parametrize("name", attacks.DOCUMENTS)
async def test_an_attack_by_document_is_refused(served, client, name):
    """Each of them is COST_EXCEEDED, alone."""
    assert await ask(served, client, attacks.DOCUMENTS[name]) == ["COST_EXCEEDED"]


@pytest.mark.parametrize("name", attacks.VARIABLES)
async def test_an_attack_by_variables_is_refused(served, client, name):
    """Variables that multiply pages, or hold more values than coercing them is worth, are COST_EXCEEDED."""
    assert await ask(served, client, *attacks.VARIABLES[name]) == ["COST_EXCEEDED"]


@pytest.mark.parametrize("name", attacks.WELCOME)
async def test_what_stays_within_the_limits_is_answered(served, client, name):
    """The limits themselves are allowed, and so is the introspection that tools send."""
    assert await ask(served, client, attacks.WELCOME[name]) == []


REASONS = {
    "3,000 levels": "nested too deeply",
    "13 levels through fragments": "levels of fields: 13",
    "2,000 aliases": "tokens",
    "31 aliases": "aliases: 31",
    "aliases multiplied by fragments": "aliases",
    "fragments multiplied without end": "levels of fields",
    "3 to the power of 9 fields": "fragments are expanded",
    "one object 480 times": "same fields",
    "200 overlapping fragments": "same fields",
    "circular fragments": "levels of fields",
    "a fragment that spreads itself": "levels of fields",
    "fragments crossed and unused": "too often",
    "a chain of fragments, spread 190 times each": "too often",
    "21 root fields": "root fields: 21",
    "200,000 comments": "too long",
    "30,000 comments": "comments",
    "51 directives": "directives: 51",
    "introspection in depth": "introspection lists",
    "introspection again and again": "too much introspection",
}


@pytest.mark.parametrize("name", REASONS)
def test_refusal_comes_before_validation(documents, name):
    """A document that is too large and invalid too is refused for its size: no rule of validation has seen it."""
    with pytest.raises(CostExceeded, match=REASONS[name]):
        documents.operation(attacks.DOCUMENTS[name] + " fragment Nope on Nope { nope }", None)


@pytest.mark.parametrize(
    ("selection", "cost"),
    [
        ("hello", 0),
        ("item { number }", 1),
        ("item { child { number } other { number } }", 3),
        ("item { children { number } }", 11),
        ("item { children { children { number } } }", 111),
        ("items(first: 5) { total }", 1),
        ("items(first: 5) { nodes { number } }", 6),
        ("items(last: 5) { nodes { number } }", 6),
        ("items(first: 5, last: 7) { nodes { number } }", 8),
        ("items { nodes { number } }", 1 + PAGE_DEFAULT),
        ("items(first: null) { nodes { number } }", 1 + PAGE_DEFAULT),
        ("items(first: -5) { nodes { number } }", 1),
        ("items(first: 5) { nodes { child { number } } }", 11),
        ("items(first: 5) { nodes { children { number } } }", 56),
        ("items(first: 5) { nodes { items(first: 3) { nodes { number } } } }", 26),
        ("item { ...F child { number } }", 2),
        ("a: item { number } b: item { number }", 2),
        ("item { number } item { child { number } }", 2),
        ("__schema { types { name } }", 0),
    ],
)
def test_the_cost_is_the_objects_it_may_return(documents, selection, cost):
    """One for each object; a page multiplies the lists below it, a list without pages counts as ten."""
    fragment = " fragment F on Item { child { number } }" if "...F" in selection else ""
    assert documents.operation(f"{{ {selection} }}{fragment}", None).cost.total({}) == cost


@pytest.mark.parametrize(
    ("variables", "cost"),
    [({}, 441), ({"n": 3}, 67), ({"m": 2}, 81), ({"n": 3, "m": 2}, 13), ({"n": None, "m": 0}, 41), ({"n": 0}, 1)],
)
def test_pages_by_variable_cost_what_the_variables_say(documents, variables, cost):
    """The same prepared document costs more or less with its variables, also through fragments."""
    query = """query ($n: Int, $m: Int) { items(first: $n) { nodes { ...F } } }
        fragment F on Item { items(last: $m) { nodes { number } } }"""
    operation = documents.operation(query, None)
    assert Execution(GRAPH, SETTINGS).requested_cost(operation, variables) == cost
    assert documents.operation(query, None) is operation


def test_a_variables_default_counts(documents):
    """The default of a page size is what is paid when the caller names none."""
    operation = documents.operation("query ($n: Int = 7) { items(first: $n) { nodes { number } } }", None)
    assert Execution(GRAPH, SETTINGS).requested_cost(operation, None) == 8


def test_only_the_chosen_operation_is_paid_for(documents):
    """A dear operation in the same document does not weigh on a cheap one."""
    query = "query A { hello } query B { items(first: 90) { nodes { items(first: 90) { nodes { number } } } } }"
    assert documents.operation(query, "A").cost.total({}) == 0
    assert documents.operation(query, "B").cost.total({}) == 1 + 90 + 90 + 90 * 90


def test_documents_are_prepared_once(documents):
    """The same text is parsed, measured and validated once."""
    assert documents.operation("{ hello }", None) is documents.operation("{ hello }", None)


@pytest.mark.parametrize(("count", "numbers"), [(DOCUMENTS + 50, 1), (DOCUMENTS_TOKENS // 1_900 + 20, 1_900)])
def test_remembered_documents_are_bounded(documents, count, numbers):
    """However many documents come by, and however large they are, so much is kept, and the latest of them."""
    texts = [f"query Q{number} {{ echo(value: [{'1 ' * numbers}]) }}" for number in range(count)]
    prepared = [documents.operation(text, None) for text in texts]
    assert len(documents._ready) <= DOCUMENTS
    assert sum(kept.tokens for kept in documents._ready.values()) <= DOCUMENTS_TOKENS
    assert documents.operation(texts[-1], None) is prepared[-1]
    assert documents.operation(texts[0], None) is not prepared[0]


def test_documents_in_use_are_remembered(documents):
    """What is asked for again and again is not displaced by what is asked for once."""
    used = documents.operation("{ hello }", None)
    for number in range(DOCUMENTS + 50):
        documents.operation(f"query Q{number} {{ hello }}", None)
        assert documents.operation("{ hello }", None) is used


def test_refused_documents_are_not_remembered(documents):
    """What fails takes no room from what works."""
    with pytest.raises(Exception, match="refused"):
        documents.operation("{ nope }", None)
    assert not documents._ready


def test_introspection_may_grow_with_graphql(documents):
    """The bound for introspection follows from the standard query, with room for its next version."""
    standard = Limits(GRAPH, SETTINGS)
    assert standard.introspection_cost > 0
    assert documents.operation(attacks.WELCOME["introspection"], None).cost.total({}) == 0
