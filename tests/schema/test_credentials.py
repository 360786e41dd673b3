"""Credentials: set, used and deleted by their owner, and read back by nobody."""

import pytest
from sqlalchemy import text

from app import credentials
from app.enums import CredentialKind
from app.secrets import Unreadable
from tests import world as w

FIELDS = "credential { kind hint createdAt lastUsedAt }"
MINE = "{ viewer { credentials { kind hint createdAt lastUsedAt } } }"
SECRET = "ghp_canary7f3aCANARY7F3A"


async def put(account, secret=SECRET, kind="GITHUB"):
    return await account.change("setCredential", FIELDS, kind=kind, secret=secret)


async def held(account):
    return (await account(MINE)).data["viewer"]["credentials"]


async def use(account, kind=CredentialKind.GITHUB):
    async with account.world.server.db.writing() as session:
        return await credentials.use(session, account.world.server.keys, account.user.id, kind)


async def sql(world, statement):
    """The rows, of what has any."""
    async with world.server.db.writing() as session:
        done = await session.execute(text(statement))
        return done.all() if done.returns_rows else []


async def test_a_credential_is_set_and_used(ada, bob):
    """Its owner sees that it is there and what it ends in; others have none of it."""
    made = (await put(ada, f" {SECRET}\n"))["credential"]
    assert (made["kind"], made["hint"], made["lastUsedAt"]) == ("GITHUB", "7F3A", None)
    assert await held(ada) == [made]
    assert await use(ada) == SECRET
    assert (await held(bob), await use(bob), await use(ada, CredentialKind.DAYTONA)) == ([], None, None)


async def test_setting_again_replaces(ada):
    """There is one of each kind; the new one has not been used."""
    await put(ada)
    await put(ada, "sk-ant-api03-x", kind="ANTHROPIC")
    await use(ada)
    await put(ada, "ghp_another_one_0000")
    assert [(one["kind"], one["hint"], one["lastUsedAt"]) for one in await held(ada)] == [
        ("ANTHROPIC", "03-x", None),
        ("GITHUB", "0000", None),
    ]
    assert await use(ada) == "ghp_another_one_0000"


async def test_deleting(ada):
    """It is gone at once; a second time there is nothing."""
    made = (await put(ada))["credential"]
    assert await ada.do("deleteCredential", FIELDS, kind="GITHUB") == made
    assert (await held(ada), await use(ada)) == ([], None)
    again = await ada.change("deleteCredential", FIELDS, kind="GITHUB")
    assert w.refusals(again) == [("NOT_FOUND", ["kind"])]


@pytest.mark.parametrize(
    "secret", ["", "short77", "has space in it", "line\nbreak", "sécret-sécret", "a\0bcdefgh", "x" * 8193]
)
async def test_what_is_no_secret_is_refused(ada, secret):
    """Its place is named and it is not quoted."""
    payload = await put(ada, secret)
    assert w.refusals(payload) == [("INVALID_INPUT", ["secret"])]
    assert not secret or secret not in str(payload)
    assert await held(ada) == []


async def test_the_hint_of_a_short_secret_says_nothing(ada):
    """Four of eight characters would be half of it."""
    assert (await put(ada, "hunter2hunt"))["credential"]["hint"] == "••••"


async def test_nothing_stored_holds_the_secret(world, ada):
    """No row of any table, as text or in bytes, and the audit log says only who did what."""
    await put(ada)
    await use(ada)
    for (table,) in await sql(world, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows = str(await sql(world, f"SELECT t::text FROM {table} t"))
        assert SECRET not in rows
        assert SECRET.encode().hex() not in rows
    audit = await sql(world, "SELECT action, object_kind, object_id FROM audit_log WHERE action LIKE 'credential%'")
    assert audit == [("credential.set", "credential", ada.user.id)]


@pytest.mark.parametrize(
    "tampered",
    [
        "UPDATE credentials SET sealed = other.sealed FROM credentials other WHERE other.kind = 'anthropic'",
        "UPDATE credentials SET sealed = set_byte(sealed, 20, get_byte(sealed, 20) # 1)",
        "UPDATE credentials SET sealed = '\\x00'",
        "UPDATE credentials SET key_id = 'another'",
    ],
)
async def test_changed_rows_are_refused(world, ada, tampered):
    """A row that was changed, or swapped for another kind's, gives no secret."""
    await put(ada)
    await put(ada, "sk-ant-api03-x", kind="ANTHROPIC")
    await sql(world, tampered)
    with pytest.raises(Unreadable):
        await use(ada)


async def test_a_row_does_not_work_for_another_user(world, ada, bob):
    """Whoever can write into the database cannot lend one user's credential to another."""
    await put(ada)
    async with world.server.db.writing() as session:
        moved = text("UPDATE credentials SET user_id = :bob")
        await session.execute(moved, {"bob": bob.user.id})
    with pytest.raises(Unreadable):
        await use(bob)


async def test_use_is_noted_to_the_minute(world, ada, statements):
    """The first use writes it down, further ones in the same minute only read."""
    await put(ada)
    with statements() as made:
        await use(ada)
    assert any(statement.startswith("UPDATE") for statement in made)
    first = (await held(ada))[0]["lastUsedAt"]
    with statements() as made:
        await use(ada)
    assert len(made) == 1
    assert (await held(ada))[0]["lastUsedAt"] == first is not None


async def test_nobody_waits_for_a_note(world, ada):
    """A use while another one notes its own goes on without writing."""
    await put(ada)
    async with world.server.db.writing() as session:
        assert await credentials.use(session, world.server.keys, ada.user.id, CredentialKind.GITHUB) == SECRET
        assert await use(ada) == SECRET
