"""What a change leaves: one entry of the feed and one audit row for each changed object, or nothing at all."""

import pytest
from sqlalchemy import select

from app import auth, ids
from app.models import Activity, AuditEntry
from tests.schema import built, scene

ROOTS = {field.name: field for field in built.root_fields() if field.operation == "mutation"}
MUTATIONS = {name: field for name, field in ROOTS.items() if field.rule != auth.WORKER}  # those leave events instead
OF_CREDENTIALS = {"setCredential", "deleteCredential"}
OF_ACCOUNTS = {"createUser", "createSignInLink", "createAccessToken", "revokeAccessToken", *OF_CREDENTIALS}
MAKE_MORE = {"createProject", "createTicket", "createTask", "injectMessage"}
TRACES = {
    "createUser": ["user.created", "sign_in_link.created"],
    "createSignInLink": ["sign_in_link.created"],
    "createAccessToken": ["token.created"],
    "revokeAccessToken": ["token.revoked"],
    "createProject": ["project.created"],
    "updateProject": ["project.changed"],
    "archiveProject": ["project.archived"],
    "setMember": ["project.member_set"],
    "removeMember": ["project.member_removed"],
    "createTicket": ["ticket.created", "task.created"],
    "updateTicket": ["ticket.changed"],
    "moveTicket": ["ticket.moved"],
    "setTicketBlockers": ["ticket.blockers_set"],
    "createTask": ["task.created"],
    "setTaskDependencies": ["task.dependencies_set"],
    "cancelTask": ["task.cancelled"],
    "retryTask": ["task.retried"],
    "spawnSandbox": ["task.assigned", "ticket.moved"],
    "stopSandbox": ["task.cancelled"],
    "injectMessage": ["message.injected"],
    "cancelMessage": ["message.cancelled"],
    "setCredential": ["credential.set"],
    "deleteCredential": ["credential.deleted"],
}
REFUSED = {
    "createUser": {"email": "nobody"},
    "createSignInLink": {"userId": "nobody"},
    "createAccessToken": {"name": ""},
    "revokeAccessToken": {"tokenId": "nothing"},
    "createProject": {"name": ""},
    "updateProject": {"name": ""},
    "archiveProject": {"projectId": "nothing"},
    "setMember": {"email": "nobody@example.com"},
    "removeMember": {"userId": "nobody"},
    "createTicket": {"blockedBy": ["nothing"]},
    "updateTicket": {"title": ""},
    "moveTicket": {"status": "DONE"},
    "setTicketBlockers": {"blockedBy": ["nothing"]},
    "createTask": {"dependsOn": ["nothing"]},
    "setTaskDependencies": {"dependsOn": ["nothing"]},
    "cancelTask": {"taskId": "nothing"},
    "retryTask": {"taskId": "nothing"},
    "spawnSandbox": {"taskId": "nothing"},
    "stopSandbox": {"sandboxId": "nothing"},
    "injectMessage": {"body": ""},
    "cancelMessage": {"messageId": "nothing"},
    "setCredential": {"secret": "short"},
    "deleteCredential": {"kind": "DAYTONA"},
}


@pytest.fixture
async def grace(world):
    return await world.account("grace", admin=True)


@pytest.fixture
async def laid(world, grace):
    return await scene.lay(grace, await world.account("carol"))


async def traces(world, model):
    async with world.server.db.reading() as session:
        return (await session.scalars(select(model).order_by(model.id))).all()


def test_the_tables_here_know_every_mutation():
    """A new mutation needs an example, a trace and a refusal."""
    nobody = type("Nobody", (), {"id": "", "email": ""})
    example = scene.examples(scene.Scene(*"abcdefghij", member=nobody, box=nobody))
    assert set(example) == set(ROOTS)
    assert set(TRACES) == set(REFUSED) == set(MUTATIONS)


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_change_leaves_its_traces(name, world, grace, laid):
    """An audit row for each object with who and what; the feed tells the same, but of accounts; refused, none."""
    given = scene.examples(laid)[name]
    audit, feed = len(await traces(world, AuditEntry)), len(await traces(world, Activity))

    refused = await grace.change(name, "__typename", **{**given, **REFUSED[name]})
    assert refused["errors"]
    assert (len(await traces(world, AuditEntry)), len(await traces(world, Activity))) == (audit, feed)

    done = await grace.change(name, built.selection(str(MUTATIONS[name].definition.type.of_type), depth=1), **given)
    assert done["errors"] == []
    rows = (await traces(world, AuditEntry))[audit:]
    assert sorted(row.action for row in rows) == sorted(TRACES[name])
    assert {(row.actor_id, row.object_kind == row.action.split(".")[0], bool(row.request_id)) for row in rows} == {
        (grace.user.id, True, True)
    }
    entries = sorted(await traces(world, Activity), key=lambda entry: (entry.stream_id, entry.seq))
    told = [(entry.verb, entry.subject_id) for entry in entries]
    assert all(((row.action, row.object_id) in told) is (name not in OF_ACCOUNTS) for row in rows)
    assert len(told) - feed == (0 if name in OF_ACCOUNTS else len(rows))


@pytest.mark.parametrize("name", sorted(set(MUTATIONS) - OF_ACCOUNTS - MAKE_MORE))
async def test_what_changes_nothing_leaves_nothing(name, world, grace, laid):
    """The same change a second time: refused, or done without a trace."""
    given = scene.examples(laid)[name]
    await grace.change(name, "__typename", **given)
    before = len(await traces(world, AuditEntry)), len(await traces(world, Activity))

    await grace.change(name, "__typename", **given)

    assert (len(await traces(world, AuditEntry)), len(await traces(world, Activity))) == before


async def test_the_feed_tells_who_did_what_to_which_object(grace, laid):
    """Each entry leads to the object as it is now."""
    await grace.do("updateTicket", "ticket { id }", ticketId=laid.ticket, title="Land gently")
    fields = "verb summary actor actorKind subject { __typename id ... on Ticket { title } }"

    answer = await grace(
        f"query($id: ID!) {{ project(id: $id) {{ activity(last: 1) {{ nodes {{ {fields} }} }} }} }}", id=laid.project
    )

    assert answer.data["project"]["activity"]["nodes"] == [
        {
            "verb": "ticket.changed",
            "summary": "changed title of #1",
            "actor": "Grace",
            "actorKind": "USER",
            "subject": {"__typename": "Ticket", "id": laid.ticket, "title": "Land gently"},
        }
    ]
    assert ids.decode(laid.ticket)
