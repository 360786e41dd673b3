"""The shape of errors: every one has a code and a request id, and none tells what only we may know."""

import asyncio
import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from schema.errors import LOGGED, MASKED
from tests.schema import toy


async def errors(served, client, query, **more):
    response = await client.post(served.url, json={"query": query, **more})
    assert response.status_code == 200
    found = response.json()["errors"]
    assert all(error["extensions"]["requestId"] for error in found)
    return response.json().get("data"), found


async def test_an_expected_refusal_keeps_its_words(served, client):
    """An error of the application shows its sentence, code and details; the code cannot be overridden by a detail."""
    data, [error] = await errors(served, client, "{ wrong }")
    assert data is None
    assert (error["message"], error["path"]) == ("That is wrong.", ["wrong"])
    assert error["extensions"]["code"] == "BAD_USER_INPUT"
    assert error["extensions"]["argument"] == "wrong"


async def test_several_refusals_are_several_errors(served, client):
    """Each of them has its own code, at the same place."""
    _, found = await errors(served, client, "{ several }")
    assert [error["extensions"]["code"] for error in found] == ["INVALID_INPUT", "NOT_FOUND"]
    assert [error["path"] for error in found] == [["several"], ["several"]]


@pytest.mark.parametrize("field", ["boom", "whole"])
async def test_the_unexpected_is_masked_and_logged(served, client, logs, field):
    """The caller reads one bare sentence and an id; the log has the cause under that id, without the document."""
    query = f'query Q {{ {field} hello(name: "a literal") }}'
    data, [error] = await errors(served, client, query)
    assert data == {field: None, "hello": "hello a literal"}
    assert (error["message"], error["extensions"]["code"]) == (MASKED, "INTERNAL")
    [entry] = [entry for entry in logs if entry["event"] == "operation_failed"]
    assert entry["request_id"] == error["extensions"]["requestId"]
    assert (entry["operation"], entry["path"]) == ("Q", field)
    assert "a literal" not in str(entry)
    assert "internals" not in json.dumps(error)


async def test_a_fault_that_repeats_is_logged_a_few_times(served, client, logs):
    """Each of the failing fields is in the answer, the log has enough of them."""
    _, found = await errors(served, client, "{ " + " ".join(f"a{n}: boom" for n in range(20)) + " }")
    assert len(found) == 20
    assert len(logs) == LOGGED


@pytest.mark.parametrize(
    ("query", "variables"),
    [
        ("{", None),
        ("{ nope }", None),
        ("query ($n: Int!) { items(first: $n) { total } }", None),
        ("query ($n: Int!) { items(first: $n) { total } }", {"n": "x"}),
        ("query ($l: [Leaf!]!) { sum(leaves: $l) }", {"l": [{"word": "x"}]}),
        ("query A { hello } query B { hello }", None),
        ("fragment F on Query { hello }", None),
    ],
)
async def test_a_request_error_is_the_callers(served, client, query, variables):
    """Syntax, validation, variables and the choice of an operation are BAD_USER_INPUT, and there is no data."""
    response = await client.post(served.url, json={"query": query, "variables": variables})
    assert "data" not in response.json()
    assert {error["extensions"]["code"] for error in response.json()["errors"]} == {"BAD_USER_INPUT"}


async def test_an_argument_that_strawberry_refuses_is_the_callers(served, client):
    """What only the field itself can refuse has a path, and is a bad input all the same."""
    query = "query ($w: String) { perhaps(word: $w) }"
    data, [error] = await errors(served, client, query, variables={"w": None})
    assert (data, error["path"]) == ({"perhaps": None}, ["perhaps"])
    assert error["extensions"]["code"] == "BAD_USER_INPUT"


@pytest.mark.parametrize(
    ("query", "variables"),
    [("query ($p: Picky) { picky(value: $p) }", {"p": "mine"}), ('{ picky(value: "mine") }', None)],
)
async def test_a_scalars_own_words_stay_inside(served, client, query, variables):
    """A parser that fails makes a bad value, and what it said to us is not passed on."""
    _, [error] = await errors(served, client, query, variables=variables)
    assert error["extensions"]["code"] == "BAD_USER_INPUT"
    assert "Picky" in error["message"]
    assert "internal words" not in error["message"]


@pytest.mark.parametrize("value", ["\ud800", 1 << 80, -(1 << 63), 0.1, "\u2028", {"\udfff": [None]}])
async def test_any_json_value_comes_back(served, client, value):
    """What JSON can carry is answered, also what the fast encoder refuses."""
    query = {"query": "query ($v: JSON!) { echo(value: $v) }", "variables": {"v": value}}
    headers = {"content-type": "application/json"}
    response = await client.post(served.url, content=json.dumps(query), headers=headers)
    assert response.json()["data"]["echo"] == value


async def test_a_result_that_is_not_json_is_masked(served, client, logs):
    """A scalar that cannot be written is our fault, and still an answer."""
    data, [error] = await errors(served, client, "{ unwritable }")
    assert (data, error["message"]) == (None, MASKED)
    assert [entry["event"] for entry in logs] == ["operation_failed"]


async def test_an_operation_has_a_deadline(client):
    """A query that hangs is cut off with a sentence that says so."""
    async with toy.serve(toy.Settings(query_seconds=0.05)) as served:
        data, [error] = await errors(served, client, "{ never }")
        assert data is None
        assert error["extensions"]["code"] == "COST_EXCEEDED"
        assert "0.05 seconds" in error["message"]


async def test_a_fault_in_authentication_is_a_masked_500(served, client, logs):
    """When we cannot tell who asks, the answer has the usual shape and the log the cause."""
    headers = {"authorization": "Bearer broken"}
    response = await client.post(served.url, json={"query": "{ hello }"}, headers=headers)
    assert response.status_code == 500
    assert response.json()["errors"][0]["message"] == MASKED
    assert [entry["event"] for entry in logs] == ["operation_failed"]


async def test_the_request_id_is_that_of_the_middleware():
    """The id that the server already gave to a request is the one that resolvers and errors name."""

    async def named(scope, receive, send):
        scope["state"] = {"request_id": "from-outside"}
        await toy.endpoint(toy.Toy())(scope, receive, send)

    transport = httpx.ASGITransport(Starlette(routes=[Mount("/", named)]))
    headers = {"authorization": "Bearer right"}
    async with httpx.AsyncClient(transport=transport, base_url="http://toy", headers=headers) as client:
        response = await client.post("/", json={"query": "{ request missing }"})
    assert response.json()["data"]["request"] == "from-outside"
    assert response.json()["errors"][0]["extensions"]["requestId"] == "from-outside"


async def test_a_client_that_leaves_before_its_body_is_forgotten(served, logs):
    """Half a request and a closed connection leave nothing behind and nothing in the log."""
    tasks = len(asyncio.all_tasks())
    host, port = served.url.split("/")[2].split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = "POST /graphql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    await toy.until(lambda: served.toy.brought)
    writer.transport.abort()
    await toy.until(lambda: len(asyncio.all_tasks()) == tasks)
    assert logs == []
