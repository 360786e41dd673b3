"""Who belongs to a project, and what an archived one refuses."""

import asyncio

import pytest

from tests import world as w
from tests.schema import built, scene

MEMBERS = "query($id: ID!) { project(id: $id) { viewerRole members { role user { email } } } }"


async def members(account, project_id):
    found = (await account(MEMBERS, id=project_id)).data["project"]["members"]
    return {member["user"]["email"].split("@")[0]: member["role"] for member in found}


async def set_member(account, project_id, email, role):
    return await account.change("setMember", "project { id }", projectId=project_id, email=email, role=role)


async def remove(account, project_id, user):
    return await account.change("removeMember", "project { id }", projectId=project_id, userId=user.id)


async def test_whoever_makes_a_project_owns_it(ada, apollo):
    answer = await ada(MEMBERS, id=apollo)
    assert answer.data["project"] == {
        "viewerRole": "OWNER",
        "members": [{"role": "OWNER", "user": {"email": ada.email}}],
    }


async def test_members_are_named_by_the_address_of_their_account(ada, bob, apollo):
    """However it is written; the role can be changed, and each sees their own."""
    for email, role in ((bob.email, "VIEWER"), (" BOB@Example.com ", "MEMBER")):
        assert (await set_member(ada, apollo, email, role))["errors"] == []
        assert await members(bob, apollo) == {"ada": "OWNER", "bob": role}
        assert (await bob(MEMBERS, id=apollo)).data["project"]["viewerRole"] == role


@pytest.mark.parametrize("email", ["nobody@example.com", "", "bob", "%@example.com", "a\0b"])
async def test_an_address_of_nobody_is_refused_at_its_place(email, ada, bob, apollo):
    assert w.refusals(await set_member(ada, apollo, email, "MEMBER")) == [("INVALID_INPUT", ["email"])]
    assert await members(ada, apollo) == {"ada": "OWNER"}


async def test_the_last_owner_stays_owner(ada, bob, apollo):
    """They can neither leave nor be made less; once there is a second one they can."""
    await w.share(ada, apollo, bob, "MEMBER")
    for refused in (await remove(ada, apollo, ada), await set_member(ada, apollo, ada.email, "VIEWER")):
        assert w.refusals(refused) == [("CONFLICT", None)]
    assert await members(ada, apollo) == {"ada": "OWNER", "bob": "MEMBER"}

    await w.share(ada, apollo, bob, "OWNER")
    assert (await set_member(ada, apollo, ada.email, "VIEWER"))["errors"] == []
    assert await members(bob, apollo) == {"ada": "VIEWER", "bob": "OWNER"}


async def test_of_two_owners_who_leave_at_once_one_stays(ada, bob):
    """Whoever comes second is the last one."""
    for _ in range(10):
        project = await w.project(ada)
        await w.share(ada, project, bob, "OWNER")

        payloads = await asyncio.gather(remove(ada, project, ada), remove(bob, project, bob))

        assert sorted(code for payload in payloads for code, _ in w.refusals(payload)) == ["CONFLICT"]


async def test_a_removed_member_sees_nothing_any_more(ada, bob, apollo):
    """Neither the project nor, once they share nothing, its people."""
    await w.share(ada, apollo, bob)
    person = "query($id: ID!) { node(id: $id) { ... on User { name email } } }"
    assert (await bob(person, id=ada.id)).data["node"] == {"name": "Ada", "email": ada.email}

    await remove(ada, apollo, bob)

    for document, one in ((MEMBERS, apollo), (person, ada.id)):
        assert (await bob(document, id=one)).codes == ["NOT_FOUND"]
    assert (await bob("{ projects { totalCount nodes { id } } }")).data["projects"] == {"totalCount": 0, "nodes": []}
    assert w.refusals(await remove(ada, apollo, bob)) == [("NOT_FOUND", ["userId"])]


TAKES_AWAY = ("archiveProject", "setMember", "removeMember", "cancelTask")


async def test_an_archived_project_refuses_every_change(ada, world):
    """Of itself and of everything in it, but for what takes access or work away; restored, it takes them again."""
    laid = await scene.lay(ada, await world.account("carol"))
    inside = [
        field.name
        for field in built.root_fields()
        if field.operation == "mutation" and field.of in ("projectId", "ticketId", "taskId")
    ]
    assert len(inside) > 10
    await ada.do("archiveProject", "project { id }", projectId=laid.project)

    for name in inside:
        payload = await ada.change(name, "__typename", **scene.examples(laid)[name])
        wanted = [] if name in TAKES_AWAY else ["PROJECT_ARCHIVED"]
        assert [error["code"] for error in payload["errors"]] == wanted, name

    restored = await ada.do("archiveProject", "project { archivedAt }", projectId=laid.project, archived=False)
    assert restored == {"archivedAt": None}
    payload = await ada.change("updateTicket", "__typename", **scene.examples(laid)["updateTicket"])
    assert payload["errors"] == []


async def test_nothing_changes_once_a_project_is_archived(ada, apollo):
    """Changes at the same moment come before it in the feed, or are refused."""
    for _ in range(5):
        project = await w.project(ada)
        tickets = [(await w.ticket(ada, project))["id"] for _ in range(4)]
        payloads = await asyncio.gather(
            *(ada.change("moveTicket", "ticket { id }", ticketId=one, status="READY") for one in tickets),
            ada.change("archiveProject", "project { id }", projectId=project),
            *(ada.change("updateTicket", "ticket { id }", ticketId=one, title="Go") for one in tickets),
        )
        assert {code for payload in payloads for code, _ in w.refusals(payload)} <= {"PROJECT_ARCHIVED"}
        document = "query($id: ID!) { project(id: $id) { activity { nodes { verb } } } }"
        feed = (await ada(document, id=project)).data["project"]["activity"]["nodes"]
        assert feed[-1] == {"verb": "project.archived"}
