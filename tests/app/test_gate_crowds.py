"""Many who come at once with the same secret: one look-up for all, which nobody takes from the others."""

import asyncio
import contextlib
import traceback

import pytest
from sqlalchemy import event, text

from app import auth, tokens, transactions
from app.auth import Credentials, Principal
from app.enums import PrincipalKind
from app.errors import Unauthenticated
from tests.servers import until

CROWD = 200
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def gate(world):
    return world.server.gate


@pytest.fixture
async def token(world, ada):
    """A token that was not used yet: its id and its text."""
    async with transactions.begin(world.server.db, None, auth.SYSTEM, request_id="test") as tx:
        made, secret = await tokens.create(tx, ada.user, name="second")
    return made.id, secret


@contextlib.contextmanager
def asked(world):
    """The statements about tokens."""
    made = []

    def note(connection, cursor, statement, *rest):
        if "access_tokens.hash" in statement or "last_used_at=" in statement:
            made.append(statement.split()[0])

    event.listen(world.server.db.engine.sync_engine, "before_cursor_execute", note)
    yield made
    event.remove(world.server.db.engine.sync_engine, "before_cursor_execute", note)


@contextlib.asynccontextmanager
async def held(world):
    """Within, no look-up of a token gets an answer."""
    async with world.server.db.writing() as session:
        await session.execute(text("LOCK TABLE users IN ACCESS EXCLUSIVE MODE"))
        yield


def crowd(gate, secret, size=CROWD):
    return [asyncio.create_task(gate.authenticate(Credentials(bearer=secret))) for _ in range(size)]


async def locked(world):
    """Whether somebody waits for a lock."""
    async with world.server.db.reading() as session:
        return await session.scalar(text(WAITING))


async def test_who_comes_together_asks_together(world, gate, token):
    """A crowd costs the database what one costs: one look-up, and one note of the use."""
    with asked(world) as made:
        principals = await asyncio.gather(*crowd(gate, token[1]))
    assert {principal.token_id for principal in principals} == {token[0]}
    assert made == ["SELECT", "UPDATE"]
    assert gate._asked == {}


async def test_everybody_is_refused(world, gate):
    """What is no token is looked up once for all who bring it; the refusal does not grow with their number."""
    with asked(world) as made:
        refusals = await asyncio.gather(*crowd(gate, "omoi_pat_invented"), return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {Unauthenticated}
    assert max(len(traceback.extract_tb(refusal.__traceback__)) for refusal in refusals) < 20
    assert made == ["SELECT"]
    assert gate._asked == {}


async def test_other_secrets_are_other_questions(world, gate, ada, token):
    """What one secret is found to be says nothing about another, nor about the same one of another kind."""
    page = Credentials(cookie=token[1], origin_allowed=True, marked=True)
    async with held(world):
        together = [*crowd(gate, token[1], 2), *crowd(gate, ada.token, 2), asyncio.create_task(gate.authenticate(page))]
        await until(lambda: len(gate._asked) == 3)
    *found, refused = await asyncio.gather(*together, return_exceptions=True)
    assert [one.token_id == token[0] for one in found] == [True, True, False, False]
    assert isinstance(refused, Unauthenticated)


async def test_who_leaves_takes_nothing_from_the_others(world, gate, token):
    """Also the one who came first may leave; the look-up ends when nobody waits for it any more."""
    with asked(world) as made:
        async with held(world):
            first, *others = crowd(gate, token[1], 3)
            await until(lambda: locked(world))
            first.cancel()
        assert [one.token_id for one in await asyncio.gather(*others)] == [token[0]] * 2
        assert first.cancelled()
    assert made == ["SELECT", "UPDATE"]


async def test_a_look_up_that_nobody_waits_for_ends(world, gate, token):
    """It gives its connection back, and who comes after that asks anew."""
    async with held(world):
        leaving = crowd(gate, token[1], 3)
        await until(lambda: locked(world))
        for one in leaving:
            one.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert gate._asked == {}
        await until(lambda: world.server.db.connections_used == 1, seconds=5)  # half as long as it may wait for a lock
    assert (await gate.authenticate(Credentials(bearer=token[1]))).token_id == token[0]


async def test_who_comes_after_a_revocation_does_not_join_those_before(world, gate, token):
    """A look-up that saw the token while it counted is believed by nobody who comes once it is revoked."""
    late = []
    world.server.db.after_commit(lambda left: late.extend(crowd(gate, token[1], 1) if tokens.ENDED in left else ()))
    async with transactions.begin(world.server.db, None, auth.SYSTEM, request_id="test") as tx:
        await tokens.revoke(tx, token[0], of_user=None)
        [early] = crowd(gate, token[1], 1)
        await until(lambda: locked(world))  # it has read the token, and is about to note its use
    assert not early.done()
    with pytest.raises(Unauthenticated):
        await late[0]
    await early
    with pytest.raises(Unauthenticated):
        await gate.authenticate(Credentials(bearer=token[1]))


@pytest.mark.parametrize("kind", [PrincipalKind.USER, PrincipalKind.SYSTEM])
async def test_who_has_no_token_is_not_watched(gate, ada, kind):
    """There is nothing that could end; when they leave, nothing is left of them."""
    principal = Principal(kind=kind, id=ada.user.id, name="")
    waiting = asyncio.create_task(gate.until_revoked(principal))
    tasks = asyncio.all_tasks()
    await asyncio.sleep(0)
    assert (gate._tokens.ids, gate._sandboxes.ids, asyncio.all_tasks()) == ([], [], tasks)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_who_leaves_is_not_watched(gate, ada):
    """A token, and an attempt, are asked about only as long as somebody waits for their end."""
    mine = await gate.authenticate(Credentials(bearer=ada.token))
    sandbox = Principal(kind=PrincipalKind.SANDBOX, id=ada.user.id, name="")
    waiting = [asyncio.create_task(gate.until_revoked(one)) for one in (mine, mine)]
    await until(lambda: gate._tokens.ids == [mine.token_id])
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(await gate.until_revoked(sandbox), Unauthenticated)  # there is no such sandbox
    assert (dict(gate._tokens._waiting), dict(gate._sandboxes._waiting)) == ({}, {})
