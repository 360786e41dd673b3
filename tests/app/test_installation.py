"""The installation: a database belongs to the root key with which it was set up."""

import asyncio
import re
from dataclasses import replace
from uuid import UUID

import pytest

from app import installation
from app.db import Database
from app.errors import CannotStart
from app.secrets import Keys
from tests.servers import short_folder, up
from tests.world import World

KEYS, OTHERS = Keys(bytes(32)), Keys(bytes([1]) * 32)


@pytest.fixture
async def db(database_url):
    database = Database(database_url, connections=20)
    yield database
    await database.close()


async def test_first_servers_agree_on_a_name(db):
    """Of many that start at once all learn the same name, and so does every later one."""
    names = await asyncio.gather(*(installation.require(db, KEYS) for _ in range(15)))
    assert {*names, await installation.require(db, KEYS)} == {names[0]}
    assert re.fullmatch("[a-z0-9]{6}", names[0])


async def test_another_root_key_is_refused(db):
    """The sentence says what to set, and the first key goes on being the right one."""
    name = await installation.require(db, KEYS)
    with pytest.raises(CannotStart, match="Set OMOI_ROOT_KEY to it"):
        await installation.require(db, OTHERS)
    assert await installation.require(db, KEYS) == name


async def test_replicas_share_tokens(database_url, settings):
    """Two servers with one root key and one database have one name and write the same tokens."""
    given = replace(settings, root_key="00" * 32)
    elsewhere = replace(given, data=settings.data / "elsewhere")
    async with World(given, database_url).running() as one, World(elsewhere, database_url).running() as two:
        names = [await installation.require(world.server.db, world.server.keys) for world in (one, two)]
        assert names[0] == names[1]
        tokens = {world.server.keys.sandbox_token(UUID(int=1), 1) for world in (one, two)}
        assert len(tokens) == 1


async def test_server_with_another_root_key_does_not_start():
    """`omoi up` says it in one sentence and leaves."""
    with short_folder() as folder:
        async with up(folder / "data"):
            pass
        with pytest.raises(AssertionError, match="another root key") as said:
            async with up(folder / "data", OMOI_ROOT_KEY="00" * 32):
                pass
        assert "Traceback" not in str(said.value)
