"""Pages of lists: forwards, backwards, steady while rows come, and what is no page is refused."""

import itertools

import pytest

from tests import world as w

PAGE = "nodes { id } edges { cursor node { id } } pageInfo { hasNextPage hasPreviousPage startCursor endCursor }"
TAKES = "$first: Int, $after: String, $last: Int, $before: String"
GIVES = "first: $first, after: $after, last: $last, before: $before"


class Lists:
    """Five lists behind one way of asking; each is filled with seven rows."""

    def __init__(self, account, project_id, ticket_id):
        self.account = account
        self.at = {"project": project_id, "ticket": ticket_id}

    async def page(self, name, **given):
        """The answer's connection."""
        answer = await self.ask(name, **given)
        assert answer.errors == [], answer.body
        found = answer.data
        while name.split(".")[-1] in found or len(found) == 1:
            found = next(iter(found.values()))
        return found

    async def ask(self, name, fields=PAGE, **given):
        parent, _, field = name.rpartition(".")
        inner = f"{field}({GIVES}) {{ {fields} }}"
        if not parent:
            return await self.account(f"query({TAKES}) {{ {inner} }}", **given)
        document = f"query($id: ID!, {TAKES}) {{ {parent}(id: $id) {{ {inner} }} }}"
        return await self.account(document, id=self.at[parent], **given)

    async def grow(self, name):
        """One row more in that list, the way a user would."""
        if name == "projects":
            await w.project(self.account)
        elif name == "project.tickets":
            await w.ticket(self.account, self.at["project"])
        elif name == "project.activity":
            await self.account.do(
                "updateProject", "project { id }", projectId=self.at["project"], name=f"Apollo {next(NUMBERS)}"
            )
        else:
            await w.task(self.account, self.at["ticket"])

    async def fill(self, name):
        while len((await self.page(name))["nodes"]) < 7:
            await self.grow(name)


NUMBERS = itertools.count(1)
NAMES = ["projects", "project.tickets", "project.tasks", "ticket.tasks", "project.activity"]
NEWEST_FIRST = {"projects", "project.tickets"}


@pytest.fixture
async def lists(ada, apollo):
    return Lists(ada, apollo, (await w.ticket(ada, apollo))["id"])


def ids_of(page):
    """The objects of a page, of which its edges tell the same."""
    assert [edge["node"] for edge in page["edges"]] == page["nodes"]
    cursors = [edge["cursor"] for edge in page["edges"]]
    info = page["pageInfo"]
    assert (info["startCursor"], info["endCursor"]) == ((cursors[0], cursors[-1]) if cursors else (None, None))
    assert len(set(cursors)) == len(cursors)
    return [node["id"] for node in page["nodes"]]


def ends_of(page):
    return page["pageInfo"]["hasPreviousPage"], page["pageInfo"]["hasNextPage"]


@pytest.mark.parametrize("name", NAMES)
async def test_pages_put_together_are_the_list(name, lists):
    """Forwards and backwards, whatever their size; each page knows whether there is more on either side."""
    await lists.fill(name)
    whole = ids_of(await lists.page(name))

    for size in (1, 3, 7, 100):
        forwards, after = [], None
        while True:
            page = await lists.page(name, first=size, after=after)
            forwards += ids_of(page)
            assert ends_of(page) == (after is not None, len(forwards) < 7)
            after = page["pageInfo"]["endCursor"]
            if not page["pageInfo"]["hasNextPage"]:
                break
        backwards, before = [], None
        while True:
            page = await lists.page(name, last=size, before=before)
            backwards = ids_of(page) + backwards
            assert ends_of(page) == (len(backwards) < 7, before is not None)
            before = page["pageInfo"]["startCursor"]
            if not page["pageInfo"]["hasPreviousPage"]:
                break
        assert (forwards, backwards) == (whole, whole)


@pytest.mark.parametrize("name", NAMES)
async def test_rows_that_come_meanwhile_shift_nothing(name, lists):
    """No row is met twice and none is passed over, while a new one comes after each page."""
    await lists.fill(name)
    whole = ids_of(await lists.page(name))
    met, after = [], None
    for _ in range(4):
        page = await lists.page(name, first=2, after=after)
        met += ids_of(page)
        after = page["pageInfo"]["endCursor"]
        await lists.grow(name)

    assert met[:7] == whole
    assert len(met) == (7 if name in NEWEST_FIRST else 8)


@pytest.mark.parametrize("name", NAMES)
async def test_between_two_cursors(name, lists):
    """`after` and `before` cut out the middle, from either end."""
    await lists.fill(name)
    page = await lists.page(name)
    whole, cursors = ids_of(page), [edge["cursor"] for edge in page["edges"]]
    between = {"after": cursors[1], "before": cursors[5]}

    assert ids_of(await lists.page(name, **between)) == whole[2:5]
    assert ids_of(await lists.page(name, first=2, **between)) == whole[2:4]
    assert ids_of(await lists.page(name, last=2, **between)) == whole[3:5]
    assert ids_of(await lists.page(name, after=cursors[6])) == []
    assert ids_of(await lists.page(name, last=5, before=cursors[0])) == []
    assert ends_of(await lists.page(name, first=5, before=cursors[3])) == (False, True)
    assert ends_of(await lists.page(name, last=5, after=cursors[3])) == (True, False)


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_no_page_is_refused(name, lists):
    """Sizes out of bounds, both ends at once, and cursors that no list has written."""
    for size in (0, -1, 101):
        for end in ("first", "last"):
            assert (await lists.ask(name, **{end: size})).codes == ["BAD_USER_INPUT"], (end, size)
    assert (await lists.ask(name, first=1, last=1)).codes == ["BAD_USER_INPUT"]
    assert (await lists.ask(name, first=2**31)).codes == ["BAD_USER_INPUT"]
    for cursor in ("", "garbage", "AAAA", "x" * 100_000, "ü", "日本", "a\0b", "=", "MQ", "é" * 200):
        for side in ("after", "before"):
            assert (await lists.ask(name, **{side: cursor})).codes == ["BAD_USER_INPUT"], cursor


@pytest.mark.parametrize("name", NAMES)
async def test_a_cursor_belongs_to_one_list(name, lists, bob):
    """Another list's, another project's and another account's cursor is refused."""
    await w.share(lists.account, lists.at["project"], bob)
    other_project = await w.project(lists.account, name="Gemini")
    other = Lists(lists.account, other_project, (await w.ticket(lists.account, other_project))["id"])
    theirs = Lists(bob, lists.at["project"], lists.at["ticket"])
    await w.task(lists.account, lists.at["ticket"])
    await w.task(lists.account, other.at["ticket"])
    await w.project(bob)

    foreign = {one: lists for one in NAMES if one != name}
    cursors = [(await asked.page(one, first=1))["pageInfo"]["endCursor"] for one, asked in foreign.items()]
    if name != "projects":
        cursors.append((await other.page(name, first=1))["pageInfo"]["endCursor"])
    if name != "project.activity":  # whose cursors are the stream's own
        cursors.append((await theirs.page(name, first=1))["pageInfo"]["endCursor"])
    for cursor in cursors:
        assert (await lists.ask(name, after=cursor)).codes == ["BAD_USER_INPUT"]


async def test_a_list_that_is_refused_spoils_no_other(ada, apollo):
    """Two projects in one request: the wrong page is an error at its place, the right one is there."""
    other = await w.project(ada, name="Gemini")
    for field in ("tickets", "tasks", "activity"):
        for wrong in (
            "first: 0",
            'after: "garbage"',
            *(['filter: {search: "a\\u0000b"}'] if field == "tickets" else []),
        ):
            bad = f'bad: project(id: "{apollo}") {{ {field}({wrong}) {{ totalCount }} }}'
            good = f'good: project(id: "{other}") {{ {field} {{ totalCount }} }}'
            answer = await ada(f"{{ {bad} {good} }}")
            assert (answer.codes, answer.data["bad"], answer.data["good"] is None) == (["BAD_USER_INPUT"], None, False)


@pytest.mark.parametrize("name", NAMES)
async def test_the_total_is_counted_only_when_asked_for(name, lists, statements):
    """It costs one statement more, counts all pages, and without it nothing is counted."""
    await lists.fill(name)
    with statements() as plain:
        await lists.ask(name, "nodes { id }", first=2)
    with statements() as counted:
        answer = await lists.ask(name, "nodes { id } totalCount", first=2)

    assert not any("count(" in statement.lower() for statement in plain)
    assert (len(counted), "totalCount': 7" in str(answer.data)) == (len(plain) + 1, True)


async def test_filters_narrow_a_list(ada, apollo):
    """Any of the named values; several filters together; an empty list of values finds nothing; null says nothing."""
    bug = await w.ticket(ada, apollo, kind="BUG", priority="HIGH")
    docs = await w.ticket(ada, apollo, kind="DOCS", priority="LOW", startTask=True)
    for wanted, numbers in (
        ({}, [2, 1]),
        ({"kinds": ["BUG"]}, [1]),
        ({"kinds": ["BUG", "DOCS"]}, [2, 1]),
        ({"priorities": ["LOW"], "kinds": ["BUG"]}, []),
        ({"statuses": ["READY"]}, [2]),
        ({"statuses": []}, []),
        ({"statuses": None, "search": None}, [2, 1]),
    ):
        answer = await ada(
            """query($id: ID!, $filter: TicketFilter) {
                 project(id: $id) { tickets(filter: $filter) { nodes { number } totalCount } } }""",
            id=apollo,
            filter=wanted,
        )
        found = answer.data["project"]["tickets"]
        assert ([node["number"] for node in found["nodes"]], found["totalCount"]) == (numbers, len(numbers)), wanted
    assert (bug["number"], docs["number"]) == (1, 2)


async def test_filters_of_tasks(ada, apollo):
    """By status, phase and ticket, in the project and in the ticket; a ticket of nowhere has none."""
    one, two = [(await w.ticket(ada, apollo))["id"] for _ in range(2)]
    first = (await w.task(ada, one, phase="TESTING"))["id"]
    second = (await w.task(ada, two))["id"]
    await ada.do("cancelTask", "task { id }", taskId=second)
    foreign = (await w.ticket(ada, await w.project(ada)))["id"]
    for wanted, found in (
        ({"ticketId": one}, [first]),
        ({"ticketId": foreign}, []),
        ({"ticketId": "garbage"}, []),
        ({"ticketId": None}, [first, second]),
        ({"statuses": ["CANCELLED", "FAILED"]}, [second]),
        ({"phases": ["TESTING"]}, [first]),
        ({"phases": ["TESTING"], "statuses": ["CANCELLED"]}, []),
    ):
        document = (
            "query($id: ID!, $filter: TaskFilter) { project(id: $id) { tasks(filter: $filter) { nodes { id } } } }"
        )
        answer = await ada(document, id=apollo, filter=wanted)
        assert [node["id"] for node in answer.data["project"]["tasks"]["nodes"]] == found, wanted


async def test_archived_projects_are_listed_when_asked_for(ada, apollo):
    """Otherwise they are not there, nor counted."""
    other = await w.project(ada, name="Gemini")
    await ada.do("archiveProject", "project { id }", projectId=apollo)
    document = "query($all: Boolean) { projects(includeArchived: $all) { nodes { id } totalCount } }"

    for wanted, found in ((None, [other]), (False, [other]), (True, [other, apollo])):
        projects = (await ada(document, all=wanted)).data["projects"]
        assert projects == {"nodes": [{"id": one} for one in found], "totalCount": len(found)}
