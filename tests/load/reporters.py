"""Workers in a process of their own: each reports for its sandbox until all was acknowledged, and writes that down.

`python -m tests.load.reporters` takes its order as JSON in its first argument. The ledger is a file: one line for each
answer that acknowledged more. Standard output tells how many were acknowledged in all, and at the end what was met.
"""

import asyncio
import collections
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from tests.load import text_of

AGAIN_SECONDS = 0.1
TIMEOUT_SECONDS = 15
REPORT = """mutation Report($input: ReportEventsInput!) { reportEvents(input: $input) {
  acceptedThrough errors { message } } }"""


class Broken(Exception):
    """The server broke its word to a worker."""


@dataclass(kw_only=True)
class Order:
    ports: list[int]  # of the servers that may be told
    tokens: dict[str, str]  # of each sandbox
    events: int  # for each sandbox
    ledger: str
    batch: int = 100
    filler: int = 10  # further characters of a remark
    at_once: int = 12  # requests
    twice: float = 0.0  # so many of the batches are sent again
    early: float = 0.0  # so many are sent before the one that they follow
    pause_seconds: float = 0.0  # after each batch of a sandbox
    seed: int = 0


class Reporters:
    def __init__(self, order: Order, http: httpx.AsyncClient, ledger) -> None:
        self.order, self.http, self.ledger = order, http, ledger
        self.room = asyncio.Semaphore(order.at_once)
        self.met: collections.Counter = collections.Counter()
        self.acknowledged = 0

    def note(self, sandbox: str, through: int, more: int) -> None:
        """In the ledger first: what it holds was acknowledged, whatever happens now."""
        self.ledger.write(f"{sandbox} {through}\n")
        self.ledger.flush()
        self.acknowledged += more
        print(self.acknowledged, flush=True)  # noqa: T201 - this is how a program tells

    async def work(self, sandbox: str, token: str, chance: random.Random) -> None:
        worker = Worker(self, sandbox, {"authorization": f"Bearer {token}"}, chance)
        while worker.through < self.order.events:
            await worker.go_on()
            await asyncio.sleep(self.order.pause_seconds)


@dataclass
class Worker:
    all: Reporters
    sandbox: str
    headers: dict[str, str]
    chance: random.Random
    through: int = 0  # what was acknowledged

    async def go_on(self) -> None:
        """The next batch, sometimes after the one that follows it, sometimes twice."""
        order, first, luck = self.all.order, self.through + 1, self.chance.random()
        if luck < order.early and first + order.batch <= order.events:
            self.all.met["early"] += 1
            await self._insist(first + order.batch)
        await self._insist(first)
        if luck > 1 - order.twice:
            self.all.met["twice"] += 1
            await self._insist(first)

    async def _insist(self, first: int) -> None:
        while (told := await self._ask(first)) is None:
            self.all.met["unanswered"] += 1
            await asyncio.sleep(AGAIN_SECONDS * self.chance.uniform(0.5, 1.5))
        last = self._last(first)
        through, refused = told["acceptedThrough"], bool(told["errors"])
        self.all.met["holes"] += refused
        if through < self.through:
            raise Broken(f"{self.sandbox}: {self.through} were acknowledged, and now only {through}")
        if through > max(last, self._last(self.through + 1)):
            raise Broken(f"{self.sandbox}: {through} were acknowledged, {last} were sent")
        if refused != (through < last) or (refused and first == self.through + 1):
            raise Broken(f"{self.sandbox}: {first} to {last} were sent, {through} were taken: {told['errors']}")
        if through > self.through:
            more, self.through = through - self.through, through
            self.all.note(self.sandbox, through, more)

    async def _ask(self, first: int) -> dict | None:
        """None: no answer, or the answer that there is none now."""
        port = self.chance.choice(self.all.order.ports)
        events = [self._event(number) for number in range(first, self._last(first) + 1)]
        body = {"query": REPORT, "variables": {"input": {"events": events}}}
        async with self.all.room:
            try:
                answer = await self.all.http.post(
                    f"http://127.0.0.1:{port}/graphql", content=orjson.dumps(body), headers=self.headers
                )
            except httpx.HTTPError:
                return None
        told = orjson.loads(answer.content)
        if error := next(iter(told.get("errors", ())), None):
            if error["extensions"]["code"] not in ("INTERNAL", "RATE_LIMITED", "COST_EXCEEDED"):
                raise Broken(str(error))
            await asyncio.sleep(float(error["extensions"].get("retryAfter", 0)))
            return None
        return told["data"]["reportEvents"]

    def _last(self, first: int) -> int:
        return min(first + self.all.order.batch - 1, self.all.order.events)

    def _event(self, number: int) -> dict:
        text = text_of(self.sandbox, number) + f"{number:x}" * (self.all.order.filler // len(f"{number:x}"))
        told = {"producerSeq": number, "type": "LOG", "payload": {"text": text}}
        return {**told, "source": "AGENT", "occurredAt": "2026-01-31T12:00:00Z"}


async def main(order: Order) -> None:
    chance = random.Random(order.seed)
    headers = {"content-type": "application/json", "accept": "application/json"}
    with Path(order.ledger).open("a") as ledger:
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, headers=headers) as http:
            reporters = Reporters(order, http, ledger)
            async with asyncio.TaskGroup() as group:
                for sandbox, token in order.tokens.items():
                    group.create_task(reporters.work(sandbox, token, random.Random(chance.random())))
    print(orjson.dumps(reporters.met).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(Order(**orjson.loads(sys.argv[1]))))
