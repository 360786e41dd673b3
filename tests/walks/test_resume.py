"""Whoever follows a sandbox misses nothing of it while its server is killed, stopped and started again."""

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass

import httpx
import pytest

from app import ids
from app.secrets import Keys
from app.settings import Settings
from tests import examples
from tests.npm import CLIENTS, Program, running
from tests.servers import copied, free_port, postgres_of, short_folder, until, up

MADE = {
    "createProject": ("project { id }", {"name": "Apollo"}),
    "createTicket": ("ticket { id }", {"title": "Land on the moon", "startTask": False}),
    "createTask": ("task { id }", {"title": "Build the lander"}),
    "spawnSandbox": ("sandbox { id }", {}),
    "createAccessToken": ("token", {"name": "watcher"}),
}
PAGE = """query($id: ID!, $after: String) { sandbox(id: $id) { digest { sha256 }
  events(first: 100, after: $after) { nodes { id } pageInfo { endCursor hasNextPage } } } }"""
NAMES = ["graphql-ws", "graphql-sse", "urql", "Apollo Client"]
AT_ONCE = 7  # events in a report
MORE = 40  # events that everybody has to see before the next thing happens to the server


@dataclass
class Reporter:
    """A sandbox's worker: it says everything until it was heard."""

    http: httpx.AsyncClient
    told: int = 0
    enough: bool = False

    async def run(self):
        while not self.enough:
            numbers = range(self.told + 1, self.told + AT_ONCE + 1)
            await self.say("reportEvents", events=[self.event(number) for number in numbers])
            self.told = numbers[-1]
            await asyncio.sleep(0.02)  # the pace of an agent
        await self.say("finishSandbox", success=True, summary="Done.")

    def event(self, number):
        told = {"producerSeq": number, "type": "LOG", "payload": {"text": "x"}}
        return {**told, "source": "AGENT", "occurredAt": "2026-01-31T12:00:00Z"}

    async def say(self, mutation, **given):
        request = {"query": called(mutation), "variables": {"input": given}}
        await until(lambda: self.heard(mutation, request), 60)

    async def heard(self, mutation, request):
        try:
            answer = await self.http.post("/graphql", json=request)
        except httpx.HTTPError:
            return False
        if answer.status_code != 200 or not (data := answer.json().get("data")):
            return False
        assert data[mutation]["errors"] == []
        return True


@contextlib.asynccontextmanager
async def reporting(url, token):
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=5) as http:
        reporter = Reporter(http)
        reporter.task = asyncio.create_task(reporter.run())
        try:
            yield reporter
        finally:
            reporter.task.cancel()
            await asyncio.gather(reporter.task, return_exceptions=True)


@dataclass
class Followers:
    clients: Program
    examples: dict[str, Program]
    reporter: Reporter

    async def go_on(self):
        """Until everybody has seen a good deal more than what was reported before."""
        mark = self.reporter.told + MORE
        await until(lambda: self.reporter.task.done() or self.least() >= mark)
        assert not self.reporter.task.done(), self.reporter.task.result()

    def least(self):
        newest = {line["client"]: line["seen"] for line in self.clients.told if "seen" in line}
        return min(*(newest.get(name, 0) for name in NAMES), *(len(one.said) for one in self.examples.values()))


@dataclass
class Ended:
    """What was stored, and what those who followed it said at their end."""

    ids: list[str]
    sha256: str
    clients: dict[str, dict]
    examples: dict[str, list[str]]


def called(mutation, fields=""):
    kind = mutation[0].upper() + mutation[1:]
    return f"mutation($input: {kind}Input!) {{ {mutation}(input: $input) {{ {fields} errors {{ message }} }} }}"


async def made(server):
    """A sandbox that no machine stands behind, by its id, and a token that may read it."""
    await server.sign_in()
    found, given = {}, {}
    for mutation, (fields, own) in MADE.items():
        payload = (await server.ask(called(mutation, fields), input={**own, **given}))["data"][mutation]
        assert payload.pop("errors") == []
        [(kind, found[mutation])] = payload.items()
        given = {f"{kind}Id": found[mutation]["id"]} if kind in ("project", "ticket", "task") else {}
    return found["spawnSandbox"]["id"], found["createAccessToken"]


async def stored(server, sandbox_id):
    """The ids of all its events, as pages tell them, and its hash."""
    found, page = [], {"hasNextPage": True, "endCursor": None}
    while page["hasNextPage"]:
        sandbox = (await server.ask(PAGE, id=sandbox_id, after=page["endCursor"]))["data"]["sandbox"]
        found += [node["id"] for node in sandbox["events"]["nodes"]]
        page = sandbox["events"]["pageInfo"]
    return found, sandbox["digest"]["sha256"]


@contextlib.asynccontextmanager
async def following(server, folder, worker_keys):
    """A sandbox whose worker reports without end, and all who follow it, each as its users run it."""
    sandbox_id, token = await made(server)
    url, copy = server.address, examples.laid(folder)
    env = {"URL": f"{url}/graphql", "TOKEN": token, "SANDBOX": sandbox_id}
    async with contextlib.AsyncExitStack() as stack:
        clients = await stack.enter_async_context(running("node", "resume.mjs", folder=CLIENTS, **env))
        programs = {
            name: await stack.enter_async_context(examples.example(name, sandbox_id, folder=copy, url=url, token=token))
            for name in examples.COMMANDS
        }
        worker = worker_keys.sandbox_token(ids.decode(sandbox_id)[1], 1)
        reporter = await stack.enter_async_context(reporting(url, worker))
        yield sandbox_id, Followers(clients, programs, reporter)


@pytest.fixture(scope="module")
async def ended(template):
    """The server is killed once and stopped once, while events are reported; everybody else stays all the time."""
    port = free_port()
    with short_folder() as folder:
        data = copied(template, folder / "data")
        async with contextlib.AsyncExitStack() as stack:
            async with up(data, PORT=port) as first:
                keys = Keys.load(Settings(data=data))
                sandbox_id, followers = await stack.enter_async_context(following(first, folder, keys))
                await followers.go_on()
                first.process.kill()
                await first.ended()
                await until(lambda: not postgres_of(data))
            async with up(data, PORT=port) as second:
                await followers.go_on()
                await second.terminate()
            async with up(data, PORT=port) as third:
                await followers.go_on()
                followers.reporter.enough = True
                await followers.reporter.task
                await stack.aclose()
                third.resume(first.session)
                clients = {line["client"]: line for line in followers.clients.told if "seqs" in line}
                said = {name: one.said for name, one in followers.examples.items()}
                yield Ended(*await stored(third, sandbox_id), clients, said)


def chained(public_ids):
    digest = bytes(32)
    for public_id in public_ids:
        digest = hashlib.sha256(digest + public_id.encode()).digest()
    return digest.hex()


@pytest.mark.parametrize("name", NAMES)
def test_a_client_sees_each_event_once_and_in_order(name, ended):
    """Without a reset, although it was cut off twice at least; and the hash that it computes is the server's."""
    client = ended.clients[name]
    assert client["seqs"] == list(range(1, len(ended.ids) + 1))
    assert (client["losses"] >= 2, client["resets"]) == (True, 0)
    assert client["sha256"] == ended.sha256 == chained(ended.ids)


@pytest.mark.parametrize("name", examples.COMMANDS)
def test_an_example_sees_each_event_once_and_proves_it(name, ended):
    """Its last word is that its hash is the server's."""
    said = ended.examples[name]
    assert [int(line.split()[0]) for line in said if line[0].isdigit()] == list(range(1, len(ended.ids) + 1))
    assert said[-1] == f"verified up to {len(ended.ids)}"
