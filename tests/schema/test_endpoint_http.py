"""GraphQL over HTTP: what the reference audits leave open."""

import json

import pytest

from tests.schema import toy

GRAPHQL = "application/graphql-response+json"


def code(response):
    return response.json()["errors"][0]["extensions"]["code"]


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("application/json", "application/json"),
        (GRAPHQL, GRAPHQL),
        (f"{GRAPHQL}, application/json;q=0.9", GRAPHQL),
        (f"{GRAPHQL};q=0.5, application/json;q=0.9", "application/json"),
        (f"text/html, {GRAPHQL}, text/event-stream", GRAPHQL),
    ],
)
async def test_the_media_type_follows_accept(served, client, accept, media):
    """The answer has the best media type that the client accepts, and JSON for clients that do not care."""
    client.headers.pop("accept")
    headers = {"accept": accept} if accept else {}
    response = await client.post(served.url, json={"query": "{ hello }"}, headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == f"{media}; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.json() == {"data": {"hello": "hello you"}}


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/png, text/*"])
async def test_an_unknown_accept_is_406(served, client, accept):
    """Who accepts nothing that we can send hears so, in JSON."""
    response = await client.post(served.url, json={"query": "{ hello }"}, headers={"accept": accept})
    assert response.status_code == 406
    assert response.json()["errors"][0]["extensions"]["requestId"]


@pytest.mark.parametrize(
    "body",
    [
        *[
            b"",
            b"{",
            b'"str"',
            b"[]",
            b"1",
            b"null",
            b"\xff",
            b"\xef\xbb\xbf{}",
            b"{}",
            b'{"query":1}',
            b'{"query":""}',
        ],
        *[b'[{"query":"{hello}"}]', b'{"query":"{hello}","variables":[]}', b'{"query":"{hello}","variables":"{}"}'],
        *[b'{"query":"{hello}","operationName":1}', b'{"query":"{hello}","extensions":[]}', b'{"documentId":{}}'],
        *[b'{"query":"{hello}","extensions":{"persistedQuery":1}}', b'{"query":"{hello}","variables":{"x":NaN}}'],
        *[b'{"query":"{hello}","variables":{"x":1e999}}', b'{"query":"{hello}","variables":{"x":' + b"1" * 5_000],
        *[b"[" * 3_000, b'{"query":"{hello}","variables":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_001],
    ],
)
@pytest.mark.parametrize("accept", ["application/json", GRAPHQL])
async def test_a_malformed_body_is_400(served, client, body, accept):
    """Whatever is not one well formed request is 400 in every media type, with a code and without data."""
    headers = {"content-type": "application/json", "accept": accept}
    response = await client.post(served.url, content=body, headers=headers)
    assert response.status_code == 400
    assert code(response) == "BAD_USER_INPUT"
    assert "data" not in response.json()


@pytest.mark.parametrize(
    "content_type",
    [
        *[None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"],
        *["application/jsonx", "application/json; charset=utf-16"],
    ],
)
async def test_only_json_is_read(served, client, content_type):
    """A form of a foreign page can send no body that is read: 415 before it is looked at."""
    headers = {"content-type": content_type} if content_type else {}
    response = await client.post(served.url, content=b'{"query":"mutation{add(number:1)}"}', headers=headers)
    assert response.status_code == 415
    assert served.toy.added == []


async def test_a_compressed_body_is_415(served, client):
    """A small body that unpacks to a large one is not unpacked."""
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert (await client.post(served.url, content=b"{}", headers=headers)).status_code == 415


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_is_413(served, client, chunked):
    """The limit holds for a length that is announced and for one that shows itself, and the connection lives on."""

    async def chunks():
        for _ in range(300):
            yield b" " * 4_096

    body = chunks() if chunked else b" " * ((1 << 20) + 1)
    response = await client.post(served.url, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert code(response) == "COST_EXCEEDED"
    assert (await client.post(served.url, json={"query": "{ hello }"})).status_code == 200


async def test_a_body_of_the_largest_size_is_read(served, client):
    """The limit itself is allowed."""
    body = json.dumps({"query": "{ hello }"}).encode().ljust(1 << 20)
    response = await client.post(served.url, content=body, headers={"content-type": "application/json"})
    assert response.json() == {"data": {"hello": "hello you"}}


@pytest.mark.parametrize(("levels", "status"), [(50, 200), (150, 400), (900, 400)])
async def test_json_nests_only_so_far(served, client, levels, status):
    """What the JSON parser would still take is refused before anything walks through it."""
    value = f"{'[' * levels}{']' * levels}"
    body = f'{{"query":"query ($v: JSON!) {{ echo(value: $v) }}","variables":{{"v":{value}}}}}'
    response = await client.post(served.url, content=body, headers={"content-type": "application/json"})
    assert response.status_code == status


async def test_get_answers_queries(served, client):
    """GET takes the same request from the query string, variables as JSON."""
    document = "query A($n: String!) { hello(name: $n) } query B { later }"
    parameters = {"query": document, "operationName": "A", "variables": '{"n":"\u00e4"}', "extensions": ""}
    response = await client.get(served.url, params=parameters)
    assert response.json() == {"data": {"hello": "hello \u00e4"}}


@pytest.mark.parametrize("query", ["", "query=", "variables={", "query={hello}&variables=[]", "query=%ff", "a&" * 30])
async def test_a_malformed_query_string_is_400(served, client, query):
    """A query string that holds no request is the caller's mistake."""
    response = await client.get(f"{served.url}?{query}")
    assert (response.status_code, code(response)) == (400, "BAD_USER_INPUT")


async def test_get_never_mutates(served, client):
    """A mutation by GET is 405, names the way to do it, and does nothing."""
    response = await client.get(served.url, params={"query": "mutation { add(number: 1) }"})
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert served.toy.added == []
    streamed = await client.get(
        served.url, params={"query": "mutation { add(number: 1) }"}, headers={"accept": "text/event-stream"}
    )
    assert (streamed.status_code, served.toy.added) == (405, [])


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_other_methods_are_405(served, client, method):
    """Only GET and POST are served."""
    response = await client.request(method, served.url)
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("accept", ["application/json", GRAPHQL, "*/*"])
async def test_a_subscription_needs_a_stream(served, client, accept):
    """A subscription is refused, not executed, when only one answer is welcome."""
    query = {"query": "subscription { forever }"}
    response = await client.post(served.url, json=query, headers={"accept": accept})
    assert response.status_code == 406
    assert "text/event-stream" in response.json()["errors"][0]["message"]
    assert served.toy.contexts == 0


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right"}])
async def test_every_request_needs_credentials(served, client, headers):
    """Even the smallest query is 401 without them, and the answer says how to bring them."""
    client.headers.pop("authorization")
    response = await client.post(served.url, json={"query": "{ __typename }"}, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert code(response) == "UNAUTHENTICATED"


async def test_credentials_are_gathered_from_the_headers(served, client):
    """Authentication sees the cookie, whether the origin is ours, and the header no foreign page can send."""
    client.headers.pop("authorization")
    own = {"cookie": "a=b; omoi_session=right", "origin": toy.ORIGIN, "omoi-client": "web"}
    assert (await client.post(served.url, json={"query": "{ hello }"}, headers=own)).status_code == 200
    for missing in ("origin", "omoi-client", "cookie"):
        headers = {name: value for name, value in own.items() if name != missing}
        assert (await client.post(served.url, json={"query": "{ hello }"}, headers=headers)).status_code == 401
    foreign = {**own, "origin": "https://foreign.example"}
    assert (await client.get(served.url, params={"query": "{ hello }"}, headers=foreign)).status_code == 401


async def test_a_bearer_wins_over_a_cookie(served, client):
    """Who brings both is judged by the bearer alone."""
    headers = {"cookie": "omoi_session=other"}
    await client.post(served.url, json={"query": "{ hello }"}, headers=headers)
    assert (served.toy.brought[-1].bearer, served.toy.brought[-1].cookie) == ("right", None)


async def test_the_cost_is_told_when_asked_for(served, client):
    """`omoi-cost` brings what the operation may return; without it the answer stays small."""
    query = {"query": "query ($n: Int) { items(first: $n) { nodes { number } } }", "variables": {"n": 7}}
    response = await client.post(served.url, json=query, headers={"omoi-cost": "1"})
    assert response.json()["extensions"] == {"cost": {"requested": 8, "maximum": toy.Settings().document_cost}}
    assert "extensions" not in (await client.post(served.url, json=query)).json()


async def test_operations_are_observed(served, client):
    """Each finished operation is reported once with its kind, name, outcome and time."""
    for query in (
        "query Fine { hello }",
        "query Bad { wrong }",
        "query Large($n: Int!) { items(first: $n) { total } }",
    ):
        await client.post(served.url, json={"query": query})
    seen = [(one["kind"], one["operation_name"], one["outcome"]) for one in served.toy.observed]
    assert seen == [("query", "Fine", "ok"), ("query", "Bad", "errors"), ("query", "Large", "refused")]
    assert all(one["seconds"] >= 0 for one in served.toy.observed)
