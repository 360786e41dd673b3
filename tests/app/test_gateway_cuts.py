"""The model gateway when answers are long, slow or cut: what they cost is known in time, and nothing is left behind."""

import asyncio
import contextlib
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import select

from app import gateway, ledger
from app.models import Sandbox
from tests import world as w
from tests.app import model_api
from tests.app.claimed import box
from tests.app.model_api import CUT, STOP, delta, said, start
from tests.app.test_gateway import call as asked
from tests.app.test_gateway import calling, cost, error_of
from tests.servers import until

BEGUN = start(input_tokens=1_000, cache_read_input_tokens=500, cache_creation_input_tokens=200)
WORDS = said("x" * 8_000)  # some 2,000 tokens
GATEWAYS = ("Gateway.", "Body.", "Tab.")


@pytest.fixture
async def api():
    async with model_api.serving() as serving:
        yield serving


@pytest.fixture
def settings(tmp_path, api):
    return w.Settings(
        data=tmp_path, orchestrator_enabled=False, anthropic_base_url=api.url, anthropic_api_key="sk-of-the-server"
    )


@pytest.fixture
async def mine(ada, apollo):
    return await box(ada, apollo)


@pytest.fixture
def in_parts(monkeypatch):
    """Each piece of an answer is written down at once."""
    monkeypatch.setattr(ledger, "PART_SECONDS", 0.0)


@contextlib.asynccontextmanager
async def asking(mine, **how):
    """A call that is under way; given up when it is so at the end."""
    task = asyncio.create_task(asked(mine, **how))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def used(box):
    row = await box.read()
    return row.input_tokens, row.cache_read_tokens, row.cache_write_tokens, row.output_tokens


def left_behind(mine, api):
    """Tasks, places and connections of calls that are over."""
    door = mine.world.server.gateway
    tasks = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    connections = [one for one in door._client._transport._pool.connections if not one.is_idle()]
    ours = [name for name in tasks if name.startswith(GATEWAYS)]
    return [*ours, *connections, *door._open, *door._ledger.writing, *range(api.open)]


@pytest.fixture
async def nothing_left(mine, api):
    yield
    await until(lambda: not left_behind(mine, api))


async def test_a_long_answer_is_counted_as_it_flows(api, mine, in_parts, nothing_left):
    """Its prompt at once, its words as they come, and in the end exactly what it says itself."""
    words, end = asyncio.Event(), asyncio.Event()
    api.answers(BEGUN, words, WORDS, end, delta(1_500), STOP)
    async with asking(mine) as answer:
        await until(lambda: comes_to(mine, (1_000, 500, 200, 1)))
        words.set()
        await until(lambda: comes_to(mine, (1_000, 500, 200, 2_000)))
        assert api.open == 1
        end.set()
        assert (await answer).content.endswith(STOP)
    await until(lambda: comes_to(mine, (1_000, 500, 200, 1_500)))
    assert await cost(mine) == pytest.approx((1_000 * 3 + 500 * 0.3 + 200 * 3.75 + 1_500 * 15) / 1e6)


async def comes_to(mine, expected):
    return await used(mine) == expected


async def test_a_budget_is_spent_as_it_flows(api, ada, in_parts):
    """The next call is refused while the answer that spends the last of it still comes."""
    project = await w.project(ada, settings={"budgetUsd": 0.02})
    mine, end = await box(ada, project), asyncio.Event()
    api.answers(BEGUN, WORDS, end, delta(2_000), STOP)
    async with asking(mine) as answer:
        await until(lambda: comes_to(mine, (1_000, 500, 200, 2_000)))
        assert error_of(await asked(mine)) == (402, "billing_error")
        end.set()
        assert (await answer).content.endswith(STOP)


async def test_a_slow_database_counts_once(api, mine, in_parts, nothing_left):
    """Parts that have to wait are written together, and none of them twice."""
    api.answers(BEGUN, WORDS, WORDS, delta(3_500), STOP)
    async with mine.world.server.db.writing() as session:
        await session.execute(select(Sandbox.id).where(Sandbox.id == mine.id).with_for_update())
        assert (await asked(mine)).content.endswith(STOP)
    await until(lambda: comes_to(mine, (1_000, 500, 200, 3_500)))


@pytest.mark.parametrize("events", [(BEGUN, WORDS, CUT), (BEGUN, WORDS)], ids=["cut", "ended too early"])
async def test_upstream_goes(api, mine, nothing_left, events):
    """What was said until then is counted by its words, and the agent hears that it is not all."""
    api.answers(*events)
    answer = await asked(mine)
    assert b"event: error" in answer.content
    assert await used(mine) == (1_000, 500, 200, 2_000)


async def test_upstream_goes_in_an_event(api, mine, nothing_left):
    """Also an answer that a proxy has ended properly is no whole one then."""
    api.answers(BEGUN, WORDS, b"event: content_bl")
    with pytest.raises(httpx.RemoteProtocolError):
        await asked(mine)
    assert await used(mine) == (1_000, 500, 200, 2_000)


async def test_client_goes(api, mine, nothing_left):
    """Upstream is told, and what was said until then is counted by its words."""
    api.answers(BEGUN, WORDS, asyncio.Event())
    async with calling(mine) as answer:
        pieces = answer.aiter_raw()
        seen = b""
        while not seen.endswith(WORDS):
            seen += await anext(pieces)
    await until(lambda: api.left == 1)
    await until(lambda: comes_to(mine, (1_000, 500, 200, 2_000)))


async def test_client_goes_while_it_asks(api, mine, nothing_left):
    """Half a request is no request, and costs nothing."""
    api.answers(BEGUN, STOP)
    sent = asyncio.Event()

    async def half():
        yield b'{"model": '
        sent.set()
        await asyncio.Event().wait()

    async with asking(mine, json=None, content=half()):
        await sent.wait()
        await until(lambda: mine.world.server.gateway._open)
    await until(lambda: not left_behind(mine, api))
    assert (api.asked, await used(mine)) == ([], (0, 0, 0, 0))


class TestSilence:
    @pytest.fixture
    def settings(self, settings, monkeypatch):
        """The gateway waits for a moment only."""
        monkeypatch.setattr(gateway, "TIMEOUT", httpx.Timeout(connect=10, read=0.3, write=10, pool=10))
        return settings

    @pytest.mark.usefixtures("nothing_left")
    async def test_upstream_never_answers(self, api, mine):
        """The agent is told something after which it tries again."""
        api.pieces = [b"", asyncio.Event()]
        assert error_of(await asked(mine)) == (502, "overloaded_error")
        await until(lambda: api.left == 1)
        assert await used(mine) == (0, 0, 0, 0)

    @pytest.mark.usefixtures("nothing_left")
    async def test_upstream_falls_silent(self, api, mine):
        """In the middle of its answer: that is cut there, and counted so far."""
        api.answers(BEGUN, WORDS, asyncio.Event())
        assert b"event: error" in (await asked(mine)).content
        await until(lambda: api.left == 1)
        assert await used(mine) == (1_000, 500, 200, 2_000)


class TestWithoutWalls:
    @pytest.fixture
    async def mine(self, ada, apollo):
        mine = await box(ada, apollo)
        await mine.write(exposed=True)
        return mine

    async def test_a_real_model_is_refused(self, api, mine):
        """For good, and the sentence names what would allow it."""
        answer = await asked(mine)
        assert error_of(answer) == (403, "permission_error")
        assert "OMOI_ALLOW_UNISOLATED" in answer.text
        assert (answer.headers["x-should-retry"], api.asked) == ("false", [])

    async def test_a_key_that_comes_after_the_launch(self, world, ada, api, mine):
        """The scripted model answers, until there is a key: then none does."""
        api.answers(BEGUN, STOP)
        world.server.gateway.upstream = gateway.Upstream(url="http://127.0.0.1:9", stand_in=api.url)
        assert (await asked(mine)).status_code == 200
        await ada.do("setCredential", "credential { kind }", kind="ANTHROPIC", secret="sk-ant-api-of-ada")
        assert error_of(await asked(mine)) == (403, "permission_error")
        assert len(api.asked) == 1

    class TestAllowed:
        @pytest.fixture
        def settings(self, settings):
            return replace(settings, allow_unisolated=True)

        async def test_the_operator_allows_it(self, api, mine):
            """Then a real model answers there."""
            api.answers(BEGUN, STOP)
            assert (await asked(mine)).status_code == 200
