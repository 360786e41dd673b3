"""The model gateway: what passes in either direction, what never does, and what an answer costs."""

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import claude_agent_sdk
import httpx
import pytest
from sqlalchemy import select

from app import budgets, gateway
from app.enums import MessageKind, SandboxEventType
from app.models import Event, Message
from app.upstream import Upstream, answer_headers
from demo import model
from tests import world as w
from tests.app import model_api
from tests.app.claimed import box
from tests.app.model_api import CUT, STOP, delta, start
from tests.servers import until

CLI = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
CLI_SECONDS = 30
PATH = "/model/v1/messages"
ASK = {"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": []}
VERSION = {"anthropic-version": "2023-06-01"}
USED = (start(input_tokens=1_000), delta(2_000), STOP)  # 0.003 and 0.03 dollars
USED_USD = 0.033


@pytest.fixture
async def api():
    async with model_api.serving() as serving:
        serving.answers(*USED)
        yield serving


@pytest.fixture
def settings(tmp_path, api):
    return w.Settings(
        data=tmp_path, orchestrator_enabled=False, anthropic_base_url=api.url, anthropic_api_key="sk-of-the-server"
    )


@pytest.fixture
async def mine(ada, apollo):
    return await box(ada, apollo)


def call(box, path=PATH, headers=(), **how):
    how = {"json": ASK} | how
    return box.world.http.post(path, headers={"x-api-key": box.token, **VERSION, **dict(headers)}, **how)


def calling(box, path=PATH):
    """An answer that is read as it comes."""
    return box.world.http.stream("POST", path, json=ASK, headers={"x-api-key": box.token, **VERSION})


def error_of(answer):
    body = answer.json()
    assert body["type"] == "error"
    return answer.status_code, body["error"]["type"]


async def cost(box):
    return (await box.read()).cost_micro_usd / 1e6


async def rows(box, kind):
    async with box.world.server.db.reading() as session:
        column = kind.stream_id if kind is Event else kind.sandbox_id
        return (await session.scalars(select(kind).where(column == box.id))).all()


async def test_passes_whole(api, mine):
    """Path, query, body and the agent's own headers go up as they are; status, headers and body come down so."""
    api.answers(*USED, status=202, request_id="req_1", anthropic_ratelimit="7")
    answer = await call(mine, f"{PATH}?beta=true&x=%20y", {"anthropic-beta": "a,b", "x-app": "cli"})
    assert (answer.status_code, answer.content) == (202, b"".join(USED))
    assert (answer.headers["request-id"], answer.headers["anthropic-ratelimit"]) == ("req_1", "7")
    [asked] = api.asked
    assert asked.line == "POST /v1/messages?beta=true&x=%20y HTTP/1.1"
    assert json.loads(asked.body) == ASK
    assert (asked.headers["anthropic-beta"], asked.headers["x-app"]) == ("a,b", "cli")


async def test_bodies_of_any_length(api, mine):
    """A request of many pieces arrives whole, announced with its length or not."""
    sent = os.urandom(3 << 20)

    async def pieces():
        for at in range(0, len(sent), 100_000):
            yield sent[at : at + 100_000]

    for content in (sent, pieces()):
        assert (await call(mine, json=None, content=content)).status_code == 200
        assert api.asked[-1].body == sent


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_token_stays_here(api, mine, header):
    """Upstream sees the server's key and nothing of the sandbox's token, whichever header brought it."""
    brought = mine.token if header == "x-api-key" else f"Bearer {mine.token}"
    headers = {header: brought, "cookie": mine.token, "x-forwarded-for": mine.token, "proxy-authorization": mine.token}
    answer = await mine.world.http.post(PATH, json=ASK, headers={**VERSION, **headers})
    assert answer.status_code == 200
    [asked] = api.asked
    assert asked.headers["x-api-key"] == "sk-of-the-server"
    assert asked.headers["accept-encoding"] == "identity"
    assert mine.token not in repr(asked)


async def test_first_byte_does_not_wait(api, mine):
    """What the model has said is with the agent while the model still speaks."""
    more = asyncio.Event()
    api.answers(start(), more, *USED[1:])
    async with calling(mine) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == start()
        assert api.open == 1
        more.set()
        assert b"".join([piece async for piece in pieces]).endswith(STOP)


async def test_users_own_key(api, ada, mine):
    """The key of who made the task comes before the server's; an OAuth token is sent as one."""
    await ada.do("setCredential", "credential { kind }", kind="ANTHROPIC", secret="sk-ant-api-of-ada")
    await call(mine)
    await ada.do("setCredential", "credential { kind }", kind="ANTHROPIC", secret="sk-ant-oat-of-ada")
    await call(mine, headers={"anthropic-beta": "a"})
    key, oauth = (asked.headers for asked in api.asked)
    assert (key["x-api-key"], key.get("authorization")) == ("sk-ant-api-of-ada", None)
    assert (oauth["authorization"], oauth.get("x-api-key")) == ("Bearer sk-ant-oat-of-ada", None)
    assert oauth["anthropic-beta"] == "a,oauth-2025-04-20"


async def test_no_key_at_all(world, api, mine):
    """Without any key the refusal says what to set, and upstream is not asked."""
    world.server.gateway.upstream = Upstream(url=api.url)
    answer = await call(mine)
    assert error_of(answer) == (401, "authentication_error")
    assert "ANTHROPIC_API_KEY" in answer.text
    assert api.asked == []


async def test_stand_in(world, ada, api, mine):
    """Who has no key is answered by the stand-in; who has one never shows it there."""
    async with model_api.serving() as script:
        script.answers(*USED)
        world.server.gateway.upstream = Upstream(url=api.url, stand_in=script.url)
        await call(mine)
        await ada.do("setCredential", "credential { kind }", kind="ANTHROPIC", secret="sk-ant-api-of-ada")
        await call(mine)
    assert [asked.headers["x-api-key"] for asked in script.asked] == ["scripted"]
    assert [asked.headers["x-api-key"] for asked in api.asked] == ["sk-ant-api-of-ada"]


def test_auth_token():
    """A token that is none of Anthropic's goes up as a bearer, without Anthropic's beta; a key comes before it."""
    given = [(b"x-api-key", b"omoi"), (b"anthropic-beta", b"a")]
    token = Upstream(url="http://x", auth_token="of-a-vendor")
    assert dict(token.request_headers(given, None))[b"authorization"] == b"Bearer of-a-vendor"
    assert dict(token.request_headers(given, None))[b"anthropic-beta"] == b"a"
    both = Upstream(url="http://x", auth_token="sk-ant-oat-1", api_key="key")
    assert dict(both.request_headers(given, None))[b"x-api-key"] == b"key"
    assert "key" not in repr(both)


def test_addresses():
    """A base with a path of its own keeps it."""
    upstream = Upstream(url="https://x/api/", api_key="key")
    assert upstream.address("v1/messages", b"a=b", None) == "https://x/api/v1/messages?a=b"


def test_what_belongs_to_the_connection():
    """Headers between upstream and this server are not its clients'."""
    given = [(b"Transfer-Encoding", b"chunked"), (b"Set-Cookie", b"a"), (b"Server", b"x"), (b"Retry-After", b"3")]
    assert answer_headers(given) == [(b"retry-after", b"3")]


async def test_usage(ada, apollo, mine):
    """What an answer used is there when the answer is complete, and reaches the task, its ticket and the project."""
    await call(mine)
    await call(mine)
    row = await mine.read()
    assert (row.input_tokens, row.output_tokens, await cost(mine)) == (2_000, 4_000, 2 * USED_USD)
    document = "query($id: ID!) { project(id: $id) { usage { outputTokens costUsd } } }"
    assert (await ada(document, id=apollo)).data["project"]["usage"] == {"outputTokens": 4_000, "costUsd": 0.066}


async def test_answer_in_one_piece(api, mine):
    """An answer that is not streamed is counted too."""
    whole = {"type": "message", "model": "claude-sonnet-4-5", "usage": {"input_tokens": 1_000, "output_tokens": 2_000}}
    api.answers(json.dumps(whole).encode(), media="application/json")
    await call(mine)
    assert await cost(mine) == USED_USD


async def test_error_answers(api, mine):
    """Upstream's refusals come down as they are, and cost nothing."""
    api.answers(b'{"type":"error"}', status=429, media="application/json", retry_after="7")
    answer = await call(mine)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (429, "7", {"type": "error"})
    assert await cost(mine) == 0


async def test_client_leaves(api, mine):
    """When the agent goes, upstream is told at once, and what was used until then is counted."""
    api.answers(start(input_tokens=1_000), asyncio.Event())
    async with calling(mine) as answer:
        await anext(answer.aiter_raw())
    await until(lambda: api.left == 1)

    async def counted():
        return (await mine.read()).input_tokens == 1_000

    await until(counted)


async def test_client_leaves_before_the_answer(api, mine):
    """Also an answer that has not begun is given up."""
    api.pieces = [b"", asyncio.Event()]
    asking = asyncio.create_task(call(mine))
    await until(lambda: api.open == 1)
    asking.cancel()
    await until(lambda: api.left == 1)
    await asyncio.gather(asking, return_exceptions=True)


async def test_break_between_events(api, mine):
    """An answer that breaks off between two events ends with an error that agents know, and counts what was used."""
    api.answers(start(input_tokens=1_000), CUT)
    answer = await call(mine)
    begun, _, told = answer.text.partition("event: error\ndata: ")
    assert begun.encode() == start(input_tokens=1_000)
    assert json.loads(told)["error"]["type"] == "overloaded_error"
    assert (await mine.read()).input_tokens == 1_000


async def test_break_in_an_event(api, mine):
    """An answer that breaks off anywhere else breaks off for the agent too: half of it never passes for a whole."""
    api.answers(start(input_tokens=1_000), b"event: content_bl", CUT)
    with pytest.raises(httpx.RemoteProtocolError):
        await call(mine)
    assert (await mine.read()).input_tokens == 1_000


@pytest.mark.parametrize(("status", "final"), [(401, True), (403, True), (429, False), (529, False)])
async def test_refused_keys(api, mine, status, final):
    """A key that the model refuses is refused the next time too, and the agent's program is told not to ask again."""
    api.answers(b"{}", status=status, media="application/json")
    answer = await call(mine)
    assert answer.status_code == status
    assert (answer.headers.get("x-should-retry") == "false") is final


async def test_unreachable(world, mine):
    """Without an upstream the agent is told something after which it tries again."""
    async with model_api.serving() as gone:
        pass
    world.server.gateway.upstream = Upstream(url=gone.url, api_key="key")
    answer = await call(mine)
    assert error_of(answer) == (502, "overloaded_error")
    assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/model/v1/models", 404, "not_found_error"),
        ("/model/v1/messages/batches", 404, "not_found_error"),
        ("/model/v1/messages/", 404, "not_found_error"),
        ("/model/v1/files", 404, "not_found_error"),
    ],
)
async def test_other_paths(api, mine, path, status, kind):
    """The key opens nothing upstream but messages."""
    assert error_of(await call(mine, path)) == (status, kind)
    assert api.asked == []


async def test_counting_tokens(api, mine):
    """Tokens can be counted, which costs nothing."""
    api.answers(b'{"input_tokens": 5}', media="application/json")
    assert (await call(mine, f"{PATH}/count_tokens")).json() == {"input_tokens": 5}
    assert await cost(mine) == 0


async def test_hello(world, api):
    """The agent's question whether anybody is there is answered here."""
    assert (await world.http.head("/model/api/hello")).status_code == 200
    assert (await world.http.get("/model/api/hello")).json() == {}
    assert api.asked == []


@pytest.mark.parametrize("token", ["", "wrong", "omoi_sbx_" + "a" * 32 + "_" + "a" * 32])
async def test_unknown_tokens(world, api, mine, token):
    """No token, and one that nobody wrote: the agent is told in the API's own words, and does not try again."""
    answer = await world.http.post(PATH, json=ASK, headers={"x-api-key": token} if token else {})
    assert error_of(answer) == (401, "authentication_error")
    assert answer.headers["x-should-retry"] == "false"
    assert api.asked == []


async def test_ended_sandbox(api, mine):
    """A sandbox that has ended asks no model."""
    await mine.end()
    assert error_of(await call(mine)) == (401, "authentication_error")
    assert api.asked == []


async def test_people_are_refused(world, ada, api):
    """The gateway is no way for people to use the server's key."""
    answer = await world.http.post(PATH, json=ASK, headers={"x-api-key": ada.token})
    assert error_of(answer) == (403, "permission_error")
    assert api.asked == []


async def test_too_large(mine):
    """A request that is larger than any the model takes is refused while it arrives."""
    assert error_of(await call(mine, json=None, content=bytes(gateway.BODY_BYTES + 1))) == (413, "request_too_large")


async def test_at_once(api, ada, apollo, mine):
    """One sandbox has eight calls at once; the ninth waits, and another sandbox does not."""
    more = asyncio.Event()
    api.answers(start(), more, STOP)
    calls = [asyncio.create_task(call(mine)) for _ in range(gateway.OF_A_SANDBOX)]
    await until(lambda: api.open == gateway.OF_A_SANDBOX)
    assert error_of(await call(mine)) == (429, "rate_limit_error")
    others = asyncio.create_task(call(await box(ada, apollo)))
    await until(lambda: api.open == gateway.OF_A_SANDBOX + 1)
    more.set()
    assert {answer.status_code for answer in await asyncio.gather(others, *calls)} == {200}
    assert (await call(mine)).status_code == 200


class TestBudget:
    @pytest.fixture
    async def apollo(self, ada):
        return await w.project(ada, settings={"budgetUsd": 0.1})  # three answers are 99 % of it

    async def test_warned_once(self, mine):
        """At 80 % the agent is told, and everybody who watches, once in a sandbox's life."""
        await call(mine)
        await call(mine)
        assert await rows(mine, Message) == []
        with mine.world.server.bus.listen(f"inbox:{mine.id}") as bell:
            await call(mine)
            assert await bell.wait(5)
        await call(mine)
        [message] = await rows(mine, Message)
        assert (message.kind, message.author) == (MessageKind.SYSTEM, "omoi")
        assert "$0.10 of its budget of $0.10" in message.body
        [warning] = [row for row in await rows(mine, Event) if row.type is SandboxEventType.BUDGET_WARNING]
        assert warning.payload == {"text": warning.payload["text"], "budgetUsd": 0.1, "spentUsd": 0.099}

    async def test_every_sandbox_is_warned(self, ada, apollo, mine):
        """Money that another sandbox has spent is a reason too."""
        for _ in range(3):
            await call(mine)
        other = await box(ada, apollo)
        await call(other)
        assert len(await rows(other, Message)) == 1

    async def test_exhausted(self, api, ada, apollo, mine):
        """Behind 100 % no sandbox of the project is answered, and a larger budget opens the gateway again."""
        other = await box(ada, apollo)
        for _ in range(4):
            await call(mine)
        refused = [await call(mine), await call(other)]
        assert [error_of(answer) for answer in refused] == [(402, "billing_error")] * 2
        assert refused[0].json()["error"]["message"].startswith("BUDGET_EXHAUSTED: ")
        assert refused[0].headers["x-should-retry"] == "false"
        assert len(api.asked) == 4
        await ada.do("updateProject", "project { id }", projectId=apollo, settings={"budgetUsd": 5})
        assert (await call(mine)).status_code == 200

    def test_standing(self):
        """A budget of nothing is used up, and none at all never is."""
        assert budgets.Standing(budget_usd=0, spent_usd=0).exhausted
        assert not budgets.Standing(budget_usd=None, spent_usd=10**9).scarce


class TestAgent:
    """The agent's own program, with the scripted model behind the gateway."""

    @pytest.fixture
    async def api(self):
        async with model.serving() as url:
            serving = model_api.ModelApi(url=url)
            yield serving

    @pytest.fixture
    def settings(self, tmp_path, api):
        return w.Settings(
            data=tmp_path, orchestrator_enabled=False, anthropic_base_url=api.url, anthropic_api_key="any"
        )

    async def run(self, box, folder):
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ANTHROPIC_BASE_URL": f"{box.world.url}/model",
            "ANTHROPIC_API_KEY": box.token,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        }
        arguments = ["-p", "[[answer]] Say something.", "--output-format", "json"]
        process = await asyncio.create_subprocess_exec(
            CLI, *arguments, env=env, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(CLI_SECONDS):
            out, _ = await process.communicate()
        return json.loads(out)

    async def test_answers(self, mine, tmp_path):
        """It works through the gateway, and what it counts itself was counted here."""
        result = await self.run(mine, tmp_path)
        row = await mine.read()
        assert not result["is_error"]
        assert (row.input_tokens, row.output_tokens) == (
            result["usage"]["input_tokens"],
            result["usage"]["output_tokens"],
        )

    async def test_asks_once_without_money(self, world, ada, tmp_path):
        """Told that the budget is used up it ends at once, and says so."""
        project = await w.project(ada)
        mine = await box(ada, project)
        await ada.do("updateProject", "project { id }", projectId=project, settings={"budgetUsd": 0})
        result = await self.run(mine, tmp_path)
        assert result["is_error"]
        assert "BUDGET_EXHAUSTED" in result["result"]
        assert 'omoi_http_requests_total{status="402"} 1.0' in (await world.http.get("/metrics")).text
