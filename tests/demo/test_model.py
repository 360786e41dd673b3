"""The server: it says what it is, answers the same request the same way, and refuses as the real API does."""

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE

import httpx
import pytest

from demo import conversation, model
from tests.demo.agent import converse

KEY = {"x-api-key": "any"}
BASH = [{"name": "Bash", "input_schema": {"type": "object"}}]


@pytest.fixture
async def http(url):
    async with httpx.AsyncClient(base_url=url, headers=KEY, timeout=10) as client:
        yield client


def request(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages, "tools": BASH, **more}


def events(body):
    """The events of a stream, each with a name that is its type."""
    found = [json.loads(data) for data in re.findall(r"^data: (.*)$", body, re.MULTILINE)]
    assert re.findall(r"^event: (.*)$", body, re.MULTILINE) == [event["type"] for event in found]
    return found


async def test_says_that_it_is_a_script(http):
    """Whoever looks is told, on the page and in a header of every answer."""
    page = await http.get("/")
    assert "scripted model" in page.text
    answers = [page, await http.post("/v1/messages", json=request("x")), await http.post("/v1/messages", content="{")]
    assert [answer.headers["omoi-model"] for answer in answers] == ["scripted"] * 3
    assert answers[1].json()["model"] == "scripted"


@pytest.mark.parametrize("stream", [True, False])
async def test_same_request_same_answer(http, stream):
    """Nothing is kept and nothing is left to chance."""
    first, second, other = [
        (await http.post("/v1/messages", json=request(text, stream=stream))).text
        for text in ("[[loop]] a", "[[loop]] a", "[[loop]] b")
    ]
    assert first == second
    assert re.findall('"id":"(.*?)"', first) != re.findall('"id":"(.*?)"', other)


async def test_stream_tells_what_the_whole_does(http):
    """The pieces of a stream put together are the answer that comes in one piece, usage included."""
    body = request("[[secret]] x", thinking={"type": "enabled"})
    whole = (await http.post("/v1/messages", json=body)).json()
    streamed = events((await http.post("/v1/messages", json={**body, "stream": True})).text)
    pieces = "".join(event["delta"].get("partial_json", "") for event in streamed if "delta" in event)
    assert [json.loads(pieces)] == [block["input"] for block in whole["content"]]
    assert [event["type"] for event in streamed[:2]] == ["message_start", "ping"]
    assert streamed[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
    # Both counts are of the request's size, which differs by the word for the stream.
    assert streamed[0]["message"]["usage"]["input_tokens"] == pytest.approx(whole["usage"]["input_tokens"], abs=10)
    assert streamed[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] > 1


async def test_tool_ids_differ_within_a_conversation(http):
    """The next step has another id, and a step that is asked for again the same."""
    first = (await http.post("/v1/messages", json=request("[[loop]] x"))).json()
    result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "no"}
    body = request("[[loop]] x")
    body["messages"] += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    second, again = [(await http.post("/v1/messages", json=body)).json() for _ in range(2)]
    assert first["content"][0]["id"] != second["content"][0]["id"] == again["content"][0]["id"]


async def test_names_the_tool_that_is_missing(http):
    """A script never uses a tool that the request does not offer."""
    answer = (await http.post("/v1/messages", json=request("[[loop]] x", tools=[]))).json()
    assert "Bash" in answer["content"][0]["text"]
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"content": b"{"}, 400, "invalid_request_error"),
        ({"json": {"model": "x"}}, 400, "invalid_request_error"),
        ({"json": request("x"), "headers": {"x-api-key": ""}}, 401, "authentication_error"),
        ({"content": b" " * (model.LARGEST_REQUEST_BYTES + 1)}, 413, "request_too_large"),
    ],
)
async def test_refuses(http, change, status, kind):
    """What is malformed, too large or without a key is refused in the API's own shape."""
    answer = await http.post("/v1/messages", **change)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == kind


@pytest.mark.parametrize(
    ("tag", "status", "reason"),
    [
        ("http401", 401, "api_error"),
        ("http429", 429, "api_error"),
        ("busy", 529, "api_error"),
        ("cut", None, "api_error"),
    ],
)
async def test_agent_sees_the_refusal(url, alone, tag, status, reason):
    """The real agent tries again and then ends with the status, or without one when the connection was lost."""
    run = await converse(url, alone, f"[[{tag}]] go")
    assert run.result.is_error
    assert (run.result.terminal_reason, run.result.api_error_status) == (reason, status)
    assert [message for message in run.messages if getattr(message, "subtype", "") == "api_retry"]


async def _collect(answer, heard):
    async for chunk in answer.aiter_bytes():
        heard.extend(chunk)


@pytest.mark.parametrize("stream", [True, False])
async def test_stall_begins_and_says_nothing(http, stream):
    """The first piece comes at once and then nothing; leaving ends it on both sides."""
    body = request("[[stall]] x", stream=stream)
    async with http.stream("POST", "/v1/messages", json=body, timeout=httpx.Timeout(10, read=0.5)) as answer:
        heard = bytearray()
        with pytest.raises(httpx.ReadTimeout):
            await _collect(answer, heard)
    assert heard
    assert b"message_stop" not in heard


async def test_ends_while_an_answer_stalls():
    """A server that is told to end does not wait for an answer that never ends."""
    async with httpx.AsyncClient(headers=KEY) as client:
        async with model.serving() as url:
            asking = client.stream("POST", f"{url}/v1/messages", json=request("[[stall]] x", stream=True))
            answer = await asking.__aenter__()
            assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.aread()


async def test_runs_as_a_program():
    """`python -m demo` says its address in one line and ends at once when it is told to."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "demo", stdout=PIPE)
    line = (await process.stdout.readline()).decode()
    async with httpx.AsyncClient() as client:
        assert (await client.get(line.split()[-1])).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert await process.stdout.read() == b""


async def test_pace_keeps_the_answer_whole(http):
    """A paced answer says the same, piece by piece."""
    async with model.serving(pace_seconds=0.001) as slow:
        body = request("[[answer]] x", stream=True)
        paced = await http.post(f"{slow}/v1/messages", json=body)
        assert paced.text == (await http.post("/v1/messages", json=body)).text
        assert conversation.read(body).task == "[[answer]] x"
