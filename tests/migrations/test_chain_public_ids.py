"""The digests of streams that were written before they were computed from public ids."""

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import select, update

from app import ids, streams, upgrade
from app.models import Stream
from tests import world as w
from tests.schema import boxes


def migrate(connection):
    [script] = [one for one in ScriptDirectory(str(upgrade.FOLDER)).walk_revisions() if "Chain public ids" in one.doc]
    with Operations.context(MigrationContext.configure(connection)):
        script.module.upgrade()


async def rows(world, query):
    async with world.server.db.reading() as session:
        return (await session.scalars(query)).all()


async def test_older_streams_can_be_verified_too(world, ada, apollo):
    """Each is given the digest that its entries have now, and a new epoch; one without entries stays as it is."""
    box = await boxes.running(ada, apollo)
    await box.report(*(box.event("LOG", {"text": "x"}) for _ in range(40)))
    for name in ("Borealis", "Castor"):
        await w.ticket(ada, await w.project(ada, name=name))
    right = {stream.id: stream for stream in await rows(world, select(Stream))}
    async with world.server.db.writing() as session:
        await streams.create(session, {ids.new(): ids.decode(apollo)[1]})
        await session.execute(update(Stream).where(Stream.last_seq > 0).values(digest=b"of another kind"))
    async with world.server.db.engine.begin() as connection:
        await connection.run_sync(migrate)

    found = {stream.id: stream for stream in await rows(world, select(Stream))}
    assert len(right) == 4
    assert {id_: found[id_].digest for id_ in right} == {id_: stream.digest for id_, stream in right.items()}
    assert not {stream.epoch for stream in right.values()} & {found[id_].epoch for id_ in right}
    [empty] = found.keys() - right.keys()
    assert found[empty].digest == bytes(32)
