"""The npm clients against the whole server: what passes against a toy has to pass here too."""

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
