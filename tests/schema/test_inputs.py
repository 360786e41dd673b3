"""What tickets and tasks take: every refusal names its place, and nothing of a refused input is stored."""

import json

import pytest

from tests import world as w

CREATE = "mutation($input: CreateTicketInput!) { createTicket(input: $input) { ticket { id } errors { code path } } }"
COUNT = "query($id: ID!) { project(id: $id) { tickets { totalCount } tasks { totalCount } activity { totalCount } } }"


async def stored(account, project_id):
    return (await account(COUNT, id=project_id)).data


@pytest.mark.parametrize(
    "title", ["", "   ", "\u200b", "x" * 10_000, "a\nb", "a\0b", "\x07"], ids=lambda title: ascii(title)[:20]
)
async def test_a_title_is_one_line_that_says_something(title, ada, apollo):
    """Of tickets and of tasks, when made and when changed."""
    ticket = (await w.ticket(ada, apollo))["id"]
    before = await stored(ada, apollo)
    for mutation, given in (
        ("createTicket", {"projectId": apollo}),
        ("updateTicket", {"ticketId": ticket}),
        ("createTask", {"ticketId": ticket}),
    ):
        payload = await ada.change(mutation, "__typename", **given, title=title)
        assert w.refusals(payload) == [("INVALID_INPUT", ["title"])], mutation
    assert await stored(ada, apollo) == before


@pytest.mark.parametrize(
    ("mutation", "given", "places"),
    [
        ("createTicket", {"title": "", "description": "x" * 64_001}, ["title", "description"]),
        ("createTicket", {"title": "a\0", "description": "b\0"}, ["title", "description"]),
        ("updateTicket", {"title": "", "blockedReason": ""}, ["title", "blockedReason"]),
        ("updateTicket", {"blockedReason": "x" * 201}, ["blockedReason"]),
        ("createTask", {"title": "Go", "maxAttempts": 0}, ["maxAttempts"]),
        ("createTask", {"title": "Go", "maxAttempts": 21}, ["maxAttempts"]),
        (
            "createTask",
            {"title": "", "maxAttempts": -1, "description": "x" * 64_001},
            ["title", "description", "maxAttempts"],
        ),
        ("cancelTask", {"reason": " "}, ["reason"]),
        ("cancelTask", {"reason": "x" * 201}, ["reason"]),
    ],
    ids=lambda given: ascii(given)[:30],
)
async def test_everything_that_is_wrong_is_told_at_once(mutation, given, places, ada, apollo):
    """Each with its place; nothing of it is stored."""
    ticket = (await w.ticket(ada, apollo))["id"]
    task = (await w.task(ada, ticket))["id"]
    before = await stored(ada, apollo)
    about = {"createTicket": {"projectId": apollo}, "cancelTask": {"taskId": task}}.get(mutation, {"ticketId": ticket})

    payload = await ada.change(mutation, "__typename", **about, **given)

    assert w.refusals(payload) == [("INVALID_INPUT", [place]) for place in places]
    assert await stored(ada, apollo) == before


@pytest.mark.parametrize("name", ["title", "description", "projectId", "idempotencyKey"])
async def test_half_a_surrogate_pair_is_nobodys_fault_but_the_callers(name, world, ada, apollo):
    """Sent as JSON can write it, it is refused as bad input wherever it stands, and never stored."""
    given = {"projectId": apollo, "title": "Land", name: "\ud800"}
    before = await stored(ada, apollo)
    body = json.dumps({"query": CREATE, "variables": {"input": given}})
    assert "\\ud800" in body

    response = await world.http.post(
        "/graphql", content=body, headers={"content-type": "application/json", "authorization": f"Bearer {ada.token}"}
    )

    told = response.json()
    errors = told.get("errors") or told["data"]["createTicket"]["errors"]
    assert {error.get("code") or error["extensions"]["code"] for error in errors} <= {
        "BAD_USER_INPUT",
        "INVALID_INPUT",
        "NOT_FOUND",
    }
    assert response.status_code < 500
    assert await stored(ada, apollo) == before


async def test_what_no_type_takes_is_refused_as_a_whole(ada, apollo):
    """Unknown words, numbers beyond 32 bits, fields that are not there, and nothing where something must be."""
    for given in (
        {"kind": "EPIC"},
        {"priority": "urgent"},
        {"colour": "red"},
        {"title": None},
        {"title": ["Land"]},
        {"startTask": "yes"},
        {"blockedBy": [None]},
    ):
        answer = await ada(CREATE, input={"projectId": apollo, "title": "Land", **given})
        assert set(answer.codes) == {"BAD_USER_INPUT"}, given
    ticket = (await w.ticket(ada, apollo))["id"]
    document = "mutation($input: CreateTaskInput!) { createTask(input: $input) { task { id } } }"
    for attempts in (2**31, -(2**31) - 1, 1.5, "3", 1e400):
        answer = await ada(document, input={"ticketId": ticket, "title": "Go", "maxAttempts": attempts})
        assert answer.data is None
        assert set(answer.codes) == {"BAD_USER_INPUT"}, attempts


async def test_text_comes_back_as_it_was_written(ada, apollo):
    """Any script, markup, quotes, and in a description line breaks and spaces too."""
    title = "Größe 👩‍🚀 “x” <b> '; DROP TABLE tickets; -- \\n %s {0} שלום"
    description = "\n  one\r\n\ttwo \u2028 three  \n"

    made = await ada.do(
        "createTicket", "ticket { title description }", projectId=apollo, title=title, description=description
    )

    assert made == {"title": title, "description": description}
