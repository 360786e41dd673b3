"""Who may reach an object by its id: what is not yours answers exactly like what is not there."""

import pytest

from app import ids
from tests import world as w
from tests.schema import built, scene

ROOTS = {field.name: field for field in built.root_fields()}
GUARDED = {name: field for name, field in ROOTS.items() if field.rule.role}
CHANGES = {
    name: field for name, field in GUARDED.items() if field.operation == "mutation" and name != "revokeAccessToken"
}
NODES = "query($ids: [ID!]!) { nodes(ids: $ids) { __typename id } }"


@pytest.fixture
async def laid(ada, world):
    return await scene.lay(ada, await world.account("carol"))


def of_ada(field, laid):
    """An object of Ada's for this field's rule."""
    if field.operation == "mutation":
        return scene.examples(laid)[field.name][field.of]
    named = {"projectId": laid.project, "sandboxId": laid.sandbox}
    return named.get(field.of) or getattr(laid, field.name, laid.ticket)


async def asked(account, field, laid, object_id):
    """The refusals, wherever they are told: code and message."""
    if field.operation == "mutation":
        given = {**scene.examples(laid)[field.name], field.of: object_id}
        payload = await account.change(field.name, "__typename", **given)
        return [(error["code"], error["message"], error["path"]) for error in payload["errors"]]
    if field.operation == "subscription":
        async with account.following(field.document(), **{field.of: object_id}) as events:
            message = await events.message()
            errors = message["payload"] if message["type"] == "error" else message["payload"].get("errors", [])
    else:
        errors = (await account(field.document(), **{field.of: object_id})).errors
    return [(error["extensions"]["code"], error["message"], error.get("path")) for error in errors]


async def test_foreign_unknown_and_malformed_ids_answer_alike(bob, laid):
    """For every root field that asks for a role: code, message and path are the same, whatever is wrong with the id."""
    for field in GUARDED.values():
        theirs = of_ada(field, laid)
        foreign = await asked(bob, field, laid, theirs)
        assert [code for code, *_ in foreign] == ["NOT_FOUND"], field.name
        for one in wrong_ids(theirs):
            assert await asked(bob, field, laid, one) == foreign, (field.name, one[:80])


def wrong_ids(right):
    """Unknown, of another kind, misspelt, and no ids at all."""
    prefix, key = ids.decode(right)
    other = "task" if prefix != "task" else "ticket"
    unknown = [ids.encode(prefix, ids.new()), ids.encode(other, key), ids.encode("nothing", key)]
    return [*unknown, right.upper(), right[:-1], f" {right}", "", "garbage", "ü", "a\0b", "x" * 5_000]


@pytest.mark.parametrize("role", ["VIEWER", "MEMBER"])
async def test_a_role_allows_what_it_says_and_no_more(role, ada, bob, laid):
    """Whoever sees the object is told FORBIDDEN, and nothing changes."""
    await w.share(ada, laid.project, bob, role)
    before = await feed(ada, laid.project)
    beyond = [field for field in CHANGES.values() if field.rule.role.name not in ("VIEWER", role)]
    assert beyond

    for field in CHANGES.values():
        if field in beyond or role == "VIEWER":
            answer = await bob(field.document(), input=scene.examples(laid)[field.name])
            assert (answer.data, answer.codes) == (None, ["FORBIDDEN"]), field.name
    assert await feed(ada, laid.project) == before


async def test_a_viewer_reads_everything(ada, bob, laid):
    """Each object of the project, and its feed."""
    await w.share(ada, laid.project, bob, "VIEWER")

    for name in ("project", "ticket", "task", "sandbox"):
        answer = await bob(f"query($id: ID!) {{ {name}(id: $id) {{ id }} }}", id=getattr(laid, name))
        assert answer.data[name]["id"] == getattr(laid, name)
    assert (await feed(bob, laid.project)) == (await feed(ada, laid.project))


async def test_a_member_changes_tickets_and_tasks(ada, bob, laid):
    """Every mutation that asks for a member lets one pass."""
    await w.share(ada, laid.project, bob, "MEMBER")

    for field in CHANGES.values():
        if field.rule.role.name == "MEMBER":
            payload = await bob.change(field.name, "__typename", **scene.examples(laid)[field.name])
            assert payload["errors"] == [], field.name


async def test_ids_inside_an_input_answer_alike_too(ada, bob, laid):
    """Blockers, dependencies and members that are not there: the same refusal at the same place."""
    mine = await w.project(bob)
    ticket = (await w.ticket(bob, mine))["id"]
    task = (await w.task(bob, ticket))["id"]
    lists = {
        "setTicketBlockers": ({"ticketId": ticket}, "blockedBy", laid.ticket),
        "createTicket": ({"projectId": mine, "title": "Go"}, "blockedBy", laid.ticket),
        "setTaskDependencies": ({"taskId": task}, "dependsOn", laid.task),
        "createTask": ({"ticketId": ticket, "title": "Go"}, "dependsOn", laid.task),
    }
    for mutation, (given, name, foreign) in lists.items():
        fine = ticket if name == "blockedBy" and mutation == "createTicket" else None
        for one in (foreign, ids.encode(foreign.split("_")[0], ids.new()), "garbage", laid.project):
            wanted = [fine, one] if fine else [one]
            payload = await bob.change(mutation, "__typename", **given, **{name: wanted})
            [error] = payload["errors"]
            assert (error["code"], error["path"]) == ("NOT_FOUND", [name, str(len(wanted) - 1)]), (mutation, one)
    for one in (ada.id, ids.encode("user", ids.new()), "garbage"):
        payload = await bob.change("removeMember", "__typename", projectId=mine, userId=one)
        assert w.refusals(payload) == [("NOT_FOUND", ["userId"])]


async def test_several_objects_are_answered_in_their_order(ada, bob, laid):
    """What cannot be seen is null with an error of its own; the rest is there, also twice."""
    theirs = (await w.ticket(bob, await w.project(bob)))["id"]
    wanted = [laid.task, theirs, laid.ticket, "garbage", laid.task, laid.project, ada.id, laid.token]

    answer = await ada(NODES, ids=wanted)

    found = [node and node["id"] for node in answer.data["nodes"]]
    assert found == [laid.task, None, laid.ticket, None, laid.task, laid.project, ada.id, laid.token]
    assert [(error["path"], error["extensions"]["code"]) for error in answer.errors] == [
        (["nodes", 1], "NOT_FOUND"),
        (["nodes", 3], "NOT_FOUND"),
    ]


async def test_no_more_objects_at_once_than_a_hundred(ada, laid):
    """101 are refused as a whole; a hundred are answered."""
    assert (await ada(NODES, ids=[laid.task] * 101)).codes == ["BAD_USER_INPUT"]
    assert len((await ada(NODES, ids=[laid.task] * 100)).data["nodes"]) == 100


async def test_every_object_has_one_id_for_ever(ada, laid):
    """The id that an object tells is the id by which it is found, as the type that it is."""
    types = {
        laid.project: "Project",
        laid.ticket: "Ticket",
        laid.task: "Task",
        laid.sandbox: "Sandbox",
        laid.message: "Message",
        ada.id: "User",
        laid.token: "AccessToken",
    }
    for one, kind in types.items():
        answer = await ada("query($id: ID!) { node(id: $id) { __typename id } }", id=one)
        assert answer.data["node"] == {"__typename": kind, "id": one}


async def feed(account, project_id):
    answer = await account(
        "query($id: ID!) { project(id: $id) { activity(last: 1) { nodes { seq } } } }", id=project_id
    )
    return answer.data["project"]["activity"]["nodes"]
