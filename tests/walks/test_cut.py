"""A cut between workers and their server, across the end of the work: everything arrives afterwards, once."""

import asyncio
import os
from urllib.parse import urlsplit

from sqlalchemy import select

from app import ids
from app.models import Event
from tests.line import laid
from tests.works import git, working

CUT_SECONDS = 60 if os.environ.get("OMOI_LONG") else 10
SETTINGS = {"checks": ["until test -e ~/go; do sleep 0.1; done"]}
ONCE = ("CHECK_STARTED", "CHECK_COMPLETED", "COMMITTED", "COMPLETED")


async def test_a_cut_across_the_end_loses_nothing(database_url):
    """The check, the commit and the report fall into the cut, and so does the push of a task with a repository."""
    async with laid() as line, working(database_url, server={"local_address": line.address}) as works:
        line.target = urlsplit(works.world.url).port
        bare = works.repository()
        projects = [
            await works.project(settings=SETTINGS, **given) for given in ({"repository": {"cloneUrl": str(bare)}}, {})
        ]
        tasks = [await works.task(one, "[[notes]] Note") for one in projects]
        boxes = [(await works.reaches(one, "RUNNING"))["sandboxes"]["nodes"][0] for one in tasks]
        homes = [works.folder / "data/sandboxes" / box["name"] / "home" for box in boxes]
        await asyncio.gather(*(works.happens(box["id"], "CHECK_STARTED") for box in boxes))
        line.cut()
        for home in homes:
            (home / "go").touch()
        await asyncio.sleep(CUT_SECONDS)  # its length is what is tested
        assert [(home / ".omoi/spool/finish.json").exists() for home in homes] == [False, True]  # the other one pushes
        heard = [await types(works, box["id"]) for box in boxes]
        assert not any("CHECK_COMPLETED" in one for one in heard)
        line.mend()
        ended = [await works.ended(one) for one in tasks]
        assert line.lost
        assert [(one["status"], one["attempt"], len(one["sandboxes"]["nodes"])) for one in ended] == [
            ("COMPLETED", 1, 1)
        ] * 2
        for box in boxes:
            await assert_whole(works, box["id"])
        assert git(bare, "rev-parse", ended[0]["result"]["branch"]) == ended[0]["result"]["commit"]
        await works.cleared()


async def assert_whole(works, sandbox_id):
    """Both numberings are without holes, and what happens once is told once."""
    async with works.world.server.db.reading() as session:
        mine = select(Event).where(Event.stream_id == ids.decode(sandbox_id)[1]).order_by(Event.seq)
        told = (await session.scalars(mine)).all()
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    by_worker = [event.producer_seq for event in told if event.producer_seq is not None]
    assert by_worker == list(range(1, len(by_worker) + 1))
    seen = [event.type.name for event in told]
    assert [seen.count(one) for one in ONCE] == [1] * len(ONCE)


async def types(works, sandbox_id):
    return [event["type"] for event in await works.events(sandbox_id)]
