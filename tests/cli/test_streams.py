"""`omoi renew-streams`: after a backup was restored, no place in a stream is taken for one of before."""

from sqlalchemy import select

from app.models import Stream
from tests import world as w
from tests.servers import omoi

FEED = """subscription($id: ID!, $after: String) { projectActivity(projectId: $id, after: $after) {
  cursor reset { reason } } }"""


async def test_a_stream_that_has_grown_again_is_another_one(world, ada, apollo, database_url, tmp_path):
    """Who is here hears of it, and so does who comes back with a cursor that would fit."""
    world.server.feeds._poll_seconds = 0.05
    await w.project(ada, name="Gemini")
    async with ada.following(FEED, id=apollo) as events:
        cursor = (await events.next())["cursor"]
        done = await omoi("renew-streams", DATABASE_URL=database_url, OMOI_DATA=tmp_path)
        assert (done.code, done.out, done.err) == (0, "Streams renewed: 2.\n", "")
        assert "restored" in (await events.next())["reset"]["reason"]
    async with ada.following(FEED, id=apollo, after=cursor) as events:
        assert "restored" in (await events.next())["reset"]["reason"]
    async with world.server.db.reading() as session:
        assert len(set(await session.scalars(select(Stream.epoch)))) == 2
