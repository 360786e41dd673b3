"""What waits for what: the same promises for blockers of tickets and for dependencies of tasks."""

import asyncio
import itertools

import pytest

from app import ids
from tests import world as w


class Blockers:
    """Tickets that wait for tickets."""

    noun, mutation, key, argument = "ticket", "setTicketBlockers", "ticketId", "blockedBy"
    forwards, backwards = "blockedBy", "blocks"

    def __init__(self, account, project_id):
        self.account, self.project = account, project_id

    async def make(self, title):
        """A new one, by its id."""
        return (await w.ticket(self.account, self.project, title=title))["id"]

    def shown(self, place):
        """How people know the one that was made there."""
        return f"#{place + 1}"


class Dependencies(Blockers):
    """Tasks that wait for tasks."""

    noun, mutation, key, argument = "task", "setTaskDependencies", "taskId", "dependsOn"
    forwards, backwards = "dependsOn", "dependents"

    async def make(self, title):
        ticket = (await w.ticket(self.account, self.project))["id"]
        return (await w.task(self.account, ticket, title=title))["id"]

    def shown(self, place):
        return "abcde"[place]


@pytest.fixture(params=[Blockers, Dependencies])
def graph(request, ada, apollo):
    return request.param(ada, apollo)


async def wait(graph, node, *needs):
    return await graph.account.change(
        graph.mutation, f"{graph.noun} {{ id }}", **{graph.key: node, graph.argument: list(needs)}
    )


async def around(graph, node):
    """The ids that a node waits for, and those that wait for it."""
    fields = f"{graph.forwards} {{ id }} {graph.backwards} {{ id }}"
    answer = await graph.account(f"query($id: ID!) {{ {graph.noun}(id: $id) {{ {fields} }} }}", id=node)
    found = answer.data[graph.noun]
    return [{one["id"] for one in found[name]} for name in (graph.forwards, graph.backwards)]


async def test_it_waits_for_exactly_what_was_said_last(graph):
    """Set, replaced in part, emptied; both sides show it."""
    one, two, three, four = [await graph.make(title) for title in "abcd"]
    for needs in ([two, three], [three, four], [four, four], []):
        assert (await wait(graph, one, *needs))["errors"] == []
        assert await around(graph, one) == [set(needs), set()]
        for other in (two, three, four):
            assert await around(graph, other) == [set(), {one} if other in needs else set()]


@pytest.mark.parametrize("length", [1, 2, 5])
async def test_a_cycle_is_refused_with_its_path(graph, length):
    """In order, with both ends; as ids for programs, in words for people. What was there before stays."""
    titles = "abcde"[:length]
    nodes = [await graph.make(title) for title in titles]
    for waiting, needed in itertools.pairwise(nodes):
        assert (await wait(graph, waiting, needed))["errors"] == []

    [error] = (await wait(graph, nodes[-1], nodes[0]))["errors"]

    path = [length - 1, *range(length)]
    assert (error["code"], error["path"]) == ("DEPENDENCY_CYCLE", [graph.argument])
    assert error["cycle"] == [nodes[place] for place in path]
    shown = " → ".join(graph.shown(place) for place in path)
    assert error["message"].endswith(f"would wait for each other: {shown}.")
    assert (await around(graph, nodes[-1]))[0] == set()


async def test_two_that_would_close_a_cycle_together_cannot_both_pass(graph):
    """At the same time, again and again: exactly one passes, and the other names the cycle."""
    for _ in range(20):
        one, two = [await graph.make(title) for title in "ab"]
        payloads = await asyncio.gather(wait(graph, one, two), wait(graph, two, one))
        assert sorted(code for payload in payloads for code, _ in w.refusals(payload)) == ["DEPENDENCY_CYCLE"]


async def test_what_is_elsewhere_is_not_there(graph):
    """An id of another project of the same owner answers like an unknown one, at its place; nothing is set."""
    one, two = [await graph.make(title) for title in "ab"]
    elsewhere = type(graph)(graph.account, await w.project(graph.account, name="Gemini"))
    for wrong in (await elsewhere.make("c"), ids.encode(graph.noun, ids.new())):
        payload = await wait(graph, one, two, wrong)
        assert w.refusals(payload) == [("NOT_FOUND", [graph.argument, "1"])]
    assert await around(graph, one) == [set(), set()]


async def test_no_more_than_a_hundred(graph):
    """101 different ones are refused before anything is looked up; the same one a hundred times over is one."""
    one, two = [await graph.make(title) for title in "ab"]
    many = [ids.encode(graph.noun, ids.new()) for _ in range(101)]

    assert w.refusals(await wait(graph, one, *many)) == [("INVALID_INPUT", [graph.argument])]
    assert (await wait(graph, one, *[two] * 101))["errors"] == []


async def test_a_new_one_can_wait_from_the_start(ada, apollo):
    """Blockers and dependencies given when it is made are there at once."""
    first = (await w.ticket(ada, apollo))["id"]
    task = (await w.task(ada, first))["id"]
    made = await ada.do("createTicket", "ticket { blockedBy { id } }", projectId=apollo, title="Go", blockedBy=[first])
    next_ = await ada.do("createTask", "task { dependsOn { id } }", ticketId=first, title="Go", dependsOn=[task])

    assert (made["blockedBy"], next_["dependsOn"]) == ([{"id": first}], [{"id": task}])


async def test_dependencies_are_set_while_a_task_is_pending(ada, apollo):
    """Afterwards they would say nothing, and that is said."""
    graph = Dependencies(ada, apollo)
    one, two = [await graph.make(title) for title in "ab"]
    await ada.do("cancelTask", "task { id }", taskId=one)

    [error] = (await wait(graph, one, two))["errors"]

    assert (error["code"], "CANCELLED" in error["message"]) == ("CONFLICT", True)
    assert await around(graph, one) == [set(), set()]
