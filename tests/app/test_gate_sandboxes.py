"""Who speaks for a sandbox: its token counts as long as its attempt lasts, on every replica, and for nothing else."""

import asyncio
from dataclasses import replace

import pytest

from app.auth import COOKIE, MARK, Credentials
from app.enums import PrincipalKind
from app.errors import Unauthenticated
from app.secrets import Keys
from app.settings import Settings
from tests.app.browser import sql
from tests.app.claimed import box
from tests.servers import until
from tests.world import World


@pytest.fixture
def settings(tmp_path):
    """No orchestrator, which would take the tasks."""
    return Settings(data=tmp_path, orchestrator_enabled=False, root_key="00" * 32)


@pytest.fixture
async def mine(ada, apollo):
    return await box(ada, apollo)


async def whose(world, token):
    return await world.server.gate.authenticate(Credentials(bearer=token))


async def counts(world, token):
    try:
        await whose(world, token)
    except Unauthenticated:
        return False
    return True


async def test_token_is_its_sandbox(world, mine):
    """The worker is the sandbox, by its id and its name, without a user's rights; also when it is remembered."""
    for _ in range(2):
        principal = await whose(world, mine.token)
        assert (principal.kind, principal.id) == (PrincipalKind.SANDBOX, mine.sandbox.id)
        assert (principal.name, principal.admin, principal.token_id) == (mine.sandbox.name, False, None)


async def test_token_of_a_sandbox_does_nothing_that_users_do(world, mine):
    """It makes nothing and sees no project."""
    answer = await world.ask("{ projects { nodes { id } } }", token=mine.token)
    assert answer.codes == ["FORBIDDEN"]
    made = await world.ask('mutation { createProject(input: {name: "x"}) { project { id } } }', token=mine.token)
    assert made.codes == ["FORBIDDEN"]


async def test_what_is_no_token_of_this_attempt(world, mine):
    """Another attempt, another root key, an unknown sandbox and nonsense are all the same refusal."""
    keys, others = world.server.keys, Keys(bytes([7]) * 32)
    wrong = [
        keys.sandbox_token(mine.sandbox.id, mine.sandbox.attempt + 1),
        keys.sandbox_token(mine.sandbox.id, 0),
        others.sandbox_token(mine.sandbox.id, mine.sandbox.attempt),
        keys.sandbox_token(mine.sandbox.task_id, mine.sandbox.attempt),
        "omoi_sbx_nonsense",
        mine.token[:-1],
    ]
    said = set()
    for token in wrong:
        with pytest.raises(Unauthenticated) as refused:
            await whose(world, token)
        said.add(refused.value.message)
    assert len(said) == 1


async def test_token_is_no_cookie(world, mine):
    """It is for headers; a browser's cookie holds sessions only, also when the token was used just now."""
    assert await counts(world, mine.token)
    with pytest.raises(Unauthenticated):
        await world.server.gate.authenticate(Credentials(cookie=mine.token, origin_allowed=True, marked=True))
    headers = {"cookie": f"{COOKIE}={mine.token}", "origin": world.url, MARK: "1"}
    assert (
        await world.http.post("/graphql", json={"query": "{ viewer { kind } }"}, headers=headers)
    ).status_code == 401


async def test_token_ends_with_its_attempt(world, mine):
    """Within a second it is refused, though it was used just before."""
    assert await counts(world, mine.token)
    await mine.finish()

    async def over():
        return not await counts(world, mine.token)

    await until(over, seconds=5)


async def test_end_is_told_to_who_watches(world, mine, ada, apollo):
    """What the worker has open ends when its attempt does; another sandbox's and a user's go on."""
    other = await box(ada, apollo)
    gate = world.server.gate
    principals = [await whose(world, token) for token in (mine.token, other.token, ada.token)]
    tasks = [asyncio.create_task(gate.until_revoked(principal)) for principal in principals]
    await mine.finish()
    error = await asyncio.wait_for(tasks[0], 5)
    assert (type(error), "attempt" in error.message) == (Unauthenticated, True)
    assert not any(task.done() for task in tasks[1:])
    await other.finish()
    assert type(await asyncio.wait_for(tasks[1], 5)) is Unauthenticated
    assert not tasks[2].done()
    tasks[2].cancel()
    await asyncio.wait(tasks[2:])
    assert gate._tokens.ids == gate._sandboxes.ids == []


async def test_row_of_another_attempt_ends_the_token(world, mine):
    """What counts is the row, and not what the token says of itself."""
    await sql(world, "UPDATE sandboxes SET attempt = attempt + 1 WHERE id = :id", id=mine.sandbox.id)
    assert not await counts(world, mine.token)


async def test_every_replica_knows_the_token(world, mine, settings, database_url):
    """One that shares the root key does, whatever its data folder; the end is known there as well."""
    given = replace(settings, data=settings.data / "elsewhere")
    async with World(given, database_url).running() as other:
        assert (await whose(other, mine.token)).id == mine.sandbox.id
        await mine.finish()

        async def over():
            return not await counts(other, mine.token)

        await until(over, seconds=5)
