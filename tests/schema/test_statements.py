"""What an answer costs: the number of SQL statements does not grow with the number of objects."""

import pytest
from sqlalchemy import text

from app import ids
from tests import world as w
from tests.schema import boxes

TASK = """id title failure { message } ticket { number } dependsOn { id title }
  waitingFor { code message blocker { id } }"""
TICKET = f"""id number createdBy {{ name }} project {{ name viewerRole createdBy {{ name }} }}
  blockedBy {{ id number }} blocks {{ id }} tasks(first: 5) {{ totalCount nodes {{ {TASK} }} }}"""
PAGE = f"query($id: ID!) {{ project(id: $id) {{ tickets(first: 50) {{ totalCount nodes {{ {TICKET} }} }} }} }}"
EVERYTHING = """{ projects(first: 100) { totalCount nodes { id viewerRole createdBy { name } members { user { name } }
  tickets(first: 2) { totalCount nodes { number tasks(first: 2) { nodes { title waitingFor { code } } } } }
  tasks(first: 2) { totalCount nodes { title } }
  activity(first: 2) { totalCount nodes { verb subject { id } } } } } }"""
NODES = (
    "query($ids: [ID!]!) { nodes(ids: $ids) { id ... on Ticket { number blockedBy { id } } ... on Task { title } } }"
)


@pytest.fixture
def grow(world):
    """So many copies of a ticket with five tasks, each waiting for the one before it, and one blocker."""

    async def copy(project_id, ticket_id, count):
        async with world.server.db.writing() as session:
            for statement in COPIES:
                await session.execute(
                    text(statement), {"p": ids.decode(project_id)[1], "t": ids.decode(ticket_id)[1], "n": count}
                )

    return copy


COPIES = (
    """INSERT INTO tickets (id, project_id, number, title, description, kind, status, priority, created_by)
       SELECT gen_random_uuid(), project_id, 100 + n, title, description, kind, status, priority, created_by
       FROM tickets, generate_series(1, :n) n WHERE id = :t""",
    """INSERT INTO tasks (id, project_id, ticket_id, title, description, phase, status, priority, attempt, max_attempts,
       resume)
       SELECT gen_random_uuid(), t.project_id, t.id, 'Part ' || n, '', 'testing', 'pending', 'low', 0, 3, false
       FROM tickets t, generate_series(1, 5) n WHERE project_id = :p AND number > 100 AND :n > 0 AND t.id <> :t""",
    """INSERT INTO task_dependencies (project_id, task_id, depends_on_id)
       SELECT b.project_id, b.id, a.id FROM tasks a JOIN tasks b ON a.ticket_id = b.ticket_id
       WHERE a.title = 'Part 1' AND b.title = 'Part 2' AND a.project_id = :p AND :n > 0 AND a.ticket_id <> :t""",
    """INSERT INTO ticket_blockers (project_id, ticket_id, blocker_id)
       SELECT project_id, id, :t FROM tickets WHERE project_id = :p AND number > 100 AND :n > 0""",
)


async def cost(account, statements, document, **variables):
    """The answer, and how many statements it took."""
    with statements() as made:
        answer = await account(document, **variables)
    assert answer.errors == []
    return answer.data, len(made)


async def test_fifty_tickets_cost_what_two_cost(ada, apollo, grow, statements):
    """With five tasks each, their blockers, dependencies and what they wait for."""
    other = await w.project(ada, name="Gemini")
    for project, count in ((apollo, 2), (other, 50)):
        await grow(project, (await w.ticket(ada, project))["id"], count)

    few, of_few = await cost(ada, statements, PAGE, id=apollo)
    many, of_many = await cost(ada, statements, PAGE, id=other)

    nodes = many["project"]["tickets"]["nodes"]
    assert (len(few["project"]["tickets"]["nodes"]), len(nodes)) == (3, 50)
    assert {len(node["tasks"]["nodes"]) for node in nodes} == {5}
    assert {reason["code"] for node in nodes for task in node["tasks"]["nodes"] for reason in task["waitingFor"]} == {
        "TICKET_BLOCKED",
        "DEPENDENCY",
    }
    assert of_many == of_few <= 20


async def test_many_projects_cost_what_one_costs(ada, apollo, grow, statements):
    """Their tickets with their tasks, their feeds, members and counts."""
    await grow(apollo, (await w.ticket(ada, apollo))["id"], 3)
    _, of_one = await cost(ada, statements, EVERYTHING)
    for name in "abcdefgh":
        project = await w.project(ada, name=name)
        await grow(project, (await w.ticket(ada, project))["id"], 3)

    found, of_many = await cost(ada, statements, EVERYTHING)

    assert found["projects"]["totalCount"] == 9
    assert all(len(node["activity"]["nodes"]) == 2 for node in found["projects"]["nodes"])
    assert of_many == of_one <= 24


async def test_a_hundred_objects_cost_what_two_cost(ada, apollo, grow, statements):
    """Of two kinds, by their ids, with what they wait for."""
    await grow(apollo, (await w.ticket(ada, apollo))["id"], 60)
    document = (
        "query($id: ID!) { project(id: $id) { tickets(first: 50) { nodes { id } } tasks(first: 50) { nodes { id } } } }"
    )
    project = (await ada(document, id=apollo)).data["project"]
    tickets, tasks = [[node["id"] for node in project[name]["nodes"]] for name in ("tickets", "tasks")]

    _, of_two = await cost(ada, statements, NODES, ids=[tickets[0], tasks[0]])
    found, of_many = await cost(ada, statements, NODES, ids=tickets + tasks)

    assert [node["id"] for node in found["nodes"]] == tickets + tasks
    assert of_many == of_two <= 6


REPORT = "mutation($input: ReportEventsInput!) { reportEvents(input: $input) { acceptedThrough errors { message } } }"


async def test_a_report_costs_two_statements(ada, apollo, statements):
    """However many events it has: its sandbox is heard, so that its lease goes on, and all rows are added at once.

    Who it is, and what is to be masked, is remembered for a second or two, and not counted here.
    """
    box = await boxes.running(ada, apollo)
    for count in (1, 100):
        events = [box.event("LOG", {"text": "x"}) for _ in range(count)]
        with statements() as made:
            answer = await box(REPORT, input={"events": events})
        assert answer.data == {"reportEvents": {"acceptedThrough": box.reported, "errors": []}}
        assert [one.split()[0] for one in made if not one.startswith("SELECT")] == ["UPDATE", "WITH"]
