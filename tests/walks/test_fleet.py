"""Many tasks over few places: all of them end, and this machine is afterwards as it was before."""

import asyncio
import os

from tests.servers import until
from tests.traces import groups, processes, sampled
from tests.works import boxes, working

TASKS = 200 if os.environ.get("OMOI_LONG") else 60  # one takes two seconds of a processor, most of it to load programs
PLACES = 8
COUNT = """query($id: ID!) { project(id: $id) {
  all: tasks(first: 1) { totalCount } completed: tasks(first: 1, filter: {statuses: [COMPLETED]}) { totalCount }
} }"""
SANDBOXES = """query($id: ID!, $after: String) { project(id: $id) { sandboxes(first: 100, after: $after) {
  pageInfo { hasNextPage endCursor } nodes { id name status attempt } } } }"""


async def test_many_tasks_over_few_places(database_url):
    """All are completed at their first attempt, never more boxes than places, and nothing is left of any of them."""
    async with working(database_url, local_sandboxes=PLACES) as works:
        project = await works.project(settings={"concurrency": 2 * PLACES})  # the places are what there is too few of
        data = works.folder / "data"
        async with sampled(lambda: len(boxes(data))) as together:
            for number in range(TASKS):
                await works.task(project, f"[[answer]] Task {number}")
            await until(lambda: all_completed(works, project), seconds=4 * TASKS)
            await works.cleared()
        assert max(together) == PLACES
        sandboxes = await all_sandboxes(works, project)
        assert {(one["status"], one["attempt"]) for one in sandboxes} == {("COMPLETED", 1)}
        assert len(sandboxes) == TASKS
        await until(lambda: nothing_left(data, sandboxes))


async def all_completed(works, project):
    await asyncio.sleep(0.5)  # both processors have better things to do than to answer this
    counted = (await works.account(COUNT, id=project)).data["project"]
    assert counted["all"]["totalCount"] == TASKS
    return counted["completed"]["totalCount"] == TASKS


async def all_sandboxes(works, project):
    found, after = [], None
    while True:
        page = (await works.account(SANDBOXES, id=project, after=after)).data["project"]["sandboxes"]
        found += page["nodes"]
        if not page["pageInfo"]["hasNextPage"]:
            return found
        after = page["pageInfo"]["endCursor"]


def nothing_left(data, sandboxes):
    """No folder, no process that this server's sandboxes had, no control group."""
    [start] = {one["name"].rpartition("-")[0] for one in sandboxes}
    folders = [path.name for path in (data / "sandboxes").iterdir() if path.is_dir()]
    return not folders and not processes(str(data / "sandboxes"), *(s["id"] for s in sandboxes)) and not groups(start)
