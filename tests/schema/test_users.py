"""Accounts, access tokens and sign-in links."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from app import ids
from tests import world as w

TOKENS = "{ viewer { kind user { id name email admin } accessTokens { id name expiresAt lastUsedAt } } }"
MADE = "accessToken { id name expiresAt lastUsedAt } token"


@pytest.fixture
async def grace(world):
    """An admin."""
    return await world.account("grace", admin=True)


async def make(account, **given):
    return await account.change("createAccessToken", MADE, **{"name": "robot", **given})


async def tokens(account):
    return [token["name"] for token in (await account(TOKENS)).data["viewer"]["accessTokens"]]


async def test_everybody_learns_who_they_are(ada, grace):
    """Their account, whether they are an admin, and their own tokens alone."""
    viewer = (await ada(TOKENS)).data["viewer"]
    assert viewer["user"] == {"id": ada.id, "name": "Ada", "email": ada.email, "admin": False}
    assert (viewer["kind"], await tokens(ada)) == ("USER", ["test"])
    assert (await grace(TOKENS)).data["viewer"]["user"]["admin"] is True


async def test_a_token_is_shown_once_and_works(world, ada):
    """Its text is in that answer and nowhere else: not in any table, of which every row is read."""
    made = await make(ada)

    answer = await world.ask(TOKENS, token=made["token"])
    assert answer.data["viewer"]["user"]["id"] == ada.id
    assert made["token"].startswith("omoi_pat_")
    async with world.server.db.reading() as session:
        tables = list(await session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")))
        assert "access_tokens" in tables
        for table in tables:
            rows = str((await session.execute(text(f"SELECT t::text FROM {table} t"))).all())
            assert made["token"] not in rows
            assert made["token"].encode().hex() not in rows


async def test_a_token_ends_at_its_moment(world, ada):
    """Not before; then it is neither accepted nor listed."""
    expires = datetime.now(UTC) + timedelta(hours=1)
    made = await make(ada, expiresAt=expires.isoformat())
    assert datetime.fromisoformat(made["accessToken"]["expiresAt"]) == expires
    assert (await world.ask(TOKENS, token=made["token"])).errors == []

    async with world.server.db.writing() as session:
        await session.execute(
            text("UPDATE access_tokens SET expires_at = now() - interval '1 second' WHERE id = :id"),
            {"id": ids.decode(made["accessToken"]["id"])[1]},
        )

    assert await tokens(ada) == ["test"]
    async with asyncio.timeout(5):  # a token is believed for a second without asking again
        while (await world.ask(TOKENS, token=made["token"])).codes != ["UNAUTHENTICATED"]:
            pass


@pytest.mark.parametrize("moment", ["2020-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
async def test_a_token_that_has_ended_already_is_refused(moment, ada):
    assert w.refusals(await make(ada, expiresAt=moment)) == [("INVALID_INPUT", ["expiresAt"])]
    assert await tokens(ada) == ["test"]


@pytest.mark.parametrize(
    "moment",
    [
        "",
        "tomorrow",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "9999-12-31T23:59:59-12:00",
        "0001-01-01T00:00:00+12:00",
        5,
        True,
    ],
)
async def test_what_is_no_moment_is_refused_as_a_whole(moment, ada):
    """A moment is text with its offset, within the years that can be written."""
    document = "mutation($input: CreateAccessTokenInput!) { createAccessToken(input: $input) { token } }"
    answer = await ada(document, input={"name": "robot", "expiresAt": moment})
    assert answer.codes == ["BAD_USER_INPUT"]
    assert await tokens(ada) == ["test"]


async def test_revoking_ends_a_token_at_once(world, ada):
    """The next request is refused, the list is without it; revoking again is harmless."""
    made = await make(ada)
    assert (await world.ask(TOKENS, token=made["token"])).errors == []

    for _ in range(2):
        revoked = await ada.do("revokeAccessToken", "accessToken { id name }", tokenId=made["accessToken"]["id"])
        assert revoked == {"id": made["accessToken"]["id"], "name": "robot"}
    assert (await world.ask(TOKENS, token=made["token"])).codes == ["UNAUTHENTICATED"]
    assert await tokens(ada) == ["test"]
    async with world.server.db.reading() as session:
        ended = await session.scalar(
            text("SELECT revoked_at <= now() FROM access_tokens WHERE id = :id"),
            {"id": ids.decode(made["accessToken"]["id"])[1]},
        )
    assert ended is True


async def test_the_token_of_another_is_not_there(ada, bob, grace):
    """For admins as well; it goes on working."""
    made = await make(ada)
    for other in (bob, grace):
        payload = await other.change("revokeAccessToken", "accessToken { id }", tokenId=made["accessToken"]["id"])
        assert w.refusals(payload) == [("NOT_FOUND", ["tokenId"])]
    assert await tokens(ada) == ["test", "robot"]


async def test_a_token_needs_a_name(ada):
    for name in ("", "  ", "x" * 201, "a\0b"):
        assert w.refusals(await make(ada, name=name)) == [("INVALID_INPUT", ["name"])]


async def test_a_user_has_a_hundred_tokens_at_most(world, ada):
    """Then one has to be revoked first."""
    async with world.server.db.writing() as session:
        await session.execute(
            text("""INSERT INTO access_tokens (id, kind, user_id, name, hash)
                    SELECT gen_random_uuid(), 'access', :user, 'x', sha256(n::text::bytea)
                    FROM generate_series(1, 98) n"""),
            {"user": ada.user.id},
        )
    last = await make(ada)
    assert w.refusals(await make(ada)) == [("LIMIT_REACHED", None)]
    await ada.do("revokeAccessToken", "accessToken { id }", tokenId=last["accessToken"]["id"])
    assert (await make(ada))["errors"] == []


async def test_accounts_are_made_by_admins_alone(ada, grace):
    """Others are forbidden, whomever they name."""
    for mutation, given in (
        ("createUser", {"email": "eve@example.com", "name": "Eve"}),
        ("createSignInLink", {"userId": ada.id}),
        ("createSignInLink", {"userId": "garbage"}),
    ):
        kind = mutation[0].upper() + mutation[1:]
        answer = await ada(
            f"mutation($input: {kind}Input!) {{ {mutation}(input: $input) {{ signInUrl }} }}", input=given
        )
        assert (answer.data, answer.codes) == (None, ["FORBIDDEN"])

    made = await grace.do("createUser", "user { name email admin }", email=" Eve@Example.com ", name=" Eve ")
    assert made == {"name": "Eve", "email": "eve@example.com", "admin": False}


async def test_a_sign_in_link_is_for_one_person(world, ada, grace):
    """It leads to this server; each is another one; for nobody there is none."""
    links = [(await grace.change("createSignInLink", "user { id } signInUrl", userId=ada.id)) for _ in range(2)]
    assert [link["user"]["id"] for link in links] == [ada.id] * 2
    assert len({link["signInUrl"] for link in links}) == 2
    assert all(link["signInUrl"].startswith(f"{world.url}/sign-in?token=omoi_link_") for link in links)

    for nobody in (ids.encode("user", ids.new()), "garbage", ids.encode("task", ids.decode(ada.id)[1])):
        payload = await grace.change("createSignInLink", "user { id } signInUrl", userId=nobody)
        assert (w.refusals(payload), payload["signInUrl"]) == ([("NOT_FOUND", ["userId"])], None)


@pytest.mark.parametrize(
    "email",
    [
        "",
        " ",
        "eve",
        "eve@",
        "@example.com",
        "eve@@example.com",
        "e ve@example.com",
        "eve@exam\nple.com",
        "a\0@b.c",
        "x" * 251 + "@b.c",
    ],
    ids=lambda email: ascii(email)[:20],
)
async def test_a_bad_address_is_refused_at_its_place(email, grace):
    """Together with a bad name; no account is made."""
    assert w.refusals(await grace.change("createUser", "user { id }", email=email, name="Eve")) == [
        ("INVALID_INPUT", ["email"])
    ]
    both = await grace.change("createUser", "user { id }", email=email, name="a\0")
    assert ("INVALID_INPUT", ["name"]) in w.refusals(both)


async def test_an_address_names_one_account(grace):
    """However it is written."""
    await grace.do("createUser", "user { id }", email="eve@example.com", name="Eve")
    payload = await grace.change("createUser", "user { id } signInUrl", email="EVE@example.com", name="Other")
    assert (w.refusals(payload), payload["signInUrl"]) == ([("CONFLICT", ["email"])], None)


async def test_the_numbers_of_the_whole_server_are_for_admins(ada, grace, apollo):
    """Others see that it works, and no more."""
    await w.task(ada, (await w.ticket(ada, apollo))["id"])
    document = "{ health { status pendingTasks oldestDueTaskSeconds components { name status } } }"

    theirs, admins = (await ada(document)).data["health"], (await grace(document)).data["health"]

    assert (theirs["status"], theirs["pendingTasks"], theirs["oldestDueTaskSeconds"]) == ("OK", None, None)
    assert (admins["pendingTasks"], admins["oldestDueTaskSeconds"] >= 0) == (1, True)
