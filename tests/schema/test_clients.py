"""The clients that others use, from npm, against the endpoint: tests/clients/*.mjs on a real server."""

from tests.npm import node
from tests.schema import toy

DOCUMENTS = {"SUBSCRIPTION": "subscription { ticks { number } }", "ENDLESS": "subscription { forever }"}
TICKS = [{"data": {"ticks": {"number": number}}} for number in range(3)]
TYPENAME = [{"data": {"__typename": "Query"}}]


async def ask(script, url):
    return await node(script, URL=url, TOKEN=toy.TOKEN, **DOCUMENTS)


async def situations(script, url):
    return {line.pop("situation"): line for line in await ask(script, url)}


def codes(found):
    return {error["extensions"]["code"] for error in found}


async def test_all_audits_of_graphql_over_http(served):
    """The reference suite has no objection of any weight: MUST, SHOULD and MAY."""
    audits = await ask("audit", served.url)
    assert len(audits) == 61
    assert [audit for audit in audits if audit["status"] != "ok"] == []


async def test_the_client_of_graphql_ws(served):
    """It gets every result, every error under the operation that failed, and the close codes that it acts on."""
    seen = await situations("ws", served.ws_url)
    assert seen["query"] == seen["tokenKey"] == {"results": TYPENAME, "complete": True}
    assert seen["subscription"] == {"results": TICKS, "complete": True}
    for failing in ("invalid", "syntax", "longSyntax", "unknownOperation", "missingVariable"):
        assert codes(seen[failing]["errors"]) == {"BAD_USER_INPUT"}
    assert codes(seen["unknownDocument"]["errors"]) == {"PERSISTED_QUERY_NOT_FOUND"}
    assert codes(seen["syntaxBesideEndless"]["beside"]["errors"]) == {"BAD_USER_INPUT"}
    assert seen["syntaxBesideEndless"]["still"] is seen["queryBesideEndless"]["still"] is True
    assert seen["queryBesideEndless"]["beside"]["results"] == TYPENAME
    assert (len(seen["leftEarly"]["results"]), seen["leftEarly"]["after"]["results"]) == (1, TYPENAME)
    assert seen["pinged"] == {"pong": True}
    assert (seen["withoutToken"]["closed"], seen["wrongToken"]["closed"]) == (4401, 4403)
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)


async def test_the_client_of_graphql_sse(served):
    """It gets every result and error in the stream, and the status of a refusal."""
    seen = await situations("sse", served.url)
    assert seen["query"] == {"results": TYPENAME, "complete": True}
    assert seen["subscription"] == {"results": TICKS, "complete": True}
    for failing in ("invalid", "syntax", "missingVariable"):
        assert codes(seen[failing]["results"][0]["errors"]) == {"BAD_USER_INPUT"}
    assert len(seen["leftEarly"]["results"]) == 1
    assert seen["withoutToken"]["status"] == 401
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)
