"""The npm clients against the whole server: what passes against a toy has to pass here too."""

from tests import world as w
from tests.npm import node


async def test_all_audits_of_graphql_over_http(ada):
    """The reference suite finds nothing to say about the real schema and its rules either."""
    audits = await node("audit", URL=f"{ada.world.url}/graphql", TOKEN=ada.token)

    assert len(audits) == 61
    assert [audit for audit in audits if audit["status"] != "ok"] == []


async def test_clients_follow_a_feed_while_they_change_it(ada, apollo):
    """graphql-ws and graphql-sse get what is stored, then what they cause, once and in order."""
    seen = await node("feed", URL=f"{ada.world.url}/graphql", TOKEN=ada.token, PROJECT=apollo)

    assert [line["client"] for line in seen] == ["graphql-ws", "graphql-sse"]
    assert seen[0]["verbs"] == ["project.created", "ticket.created"]
    assert seen[1]["verbs"] == ["project.created", "ticket.created", "ticket.created"]


async def test_the_example_of_the_docs_resumes_and_misses_nothing(ada, apollo):
    """Its socket is cut after each batch; every entry is shown once and in order."""
    for number in range(250):
        await w.ticket(ada, apollo, title=f"Stage {number}")

    url = f"{ada.world.url}/graphql".replace("http", "ws")
    [seen] = await node("follow", URL=url, TOKEN=ada.token, PROJECT=apollo, AFTER="251")

    assert seen["seqs"] == list(range(1, 252))
    assert seen["attempts"] > 1


async def test_the_example_of_the_docs_stops_where_it_is_not_welcome(ada, bob, apollo):
    """A project that is not theirs is asked for once."""
    url = f"{ada.world.url}/graphql".replace("http", "ws")
    [seen] = await node("follow", URL=url, TOKEN=bob.token, PROJECT=apollo, AFTER="1")

    assert seen == {"seqs": [], "attempts": 1, "code": "NOT_FOUND", "message": seen["message"]}
