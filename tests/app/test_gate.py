"""Who is let in: the same credentials mean the same over every transport, and stop counting everywhere at once."""

import contextlib
import json

import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app import auth, tokens, transactions
from app.auth import COOKIE, MARK
from tests.app.browser import link_for, signed_in, sql
from tests.servers import shared_world, until
from tests.world import Account, ticket

ASK = "{ viewer { kind } }"
IN = 200


async def post(world, headers, marked=False, accept="application/json"):
    headers = {**headers, "accept": accept, **({MARK: "1"} if marked else {})}
    answer = await world.http.post("/graphql", json={"query": ASK}, headers=headers)
    assert answer.status_code == IN or answer.json()["errors"][0]["extensions"]["code"] == "UNAUTHENTICATED"
    return answer.status_code


async def event_stream(world, headers, marked=False):
    return await post(world, headers, marked, accept="text/event-stream")


async def get(world, headers, marked=False):
    headers = {**headers, **({MARK: "1"} if marked else {})}
    return (await world.http.get("/graphql", params={"query": ASK}, headers=headers)).status_code


async def socket(world, headers, marked=False, **payload):
    """IN, the status that refused the handshake, or the code that closed the socket."""
    url = world.url.replace("http", "ws") + "/graphql"
    payload |= {MARK: "1"} if marked else {}
    try:
        async with connect(url, additional_headers=headers, subprotocols=["graphql-transport-ws"]) as ws:
            await ws.send(json.dumps({"type": "connection_init", "payload": payload}))
            return IN if json.loads(await ws.recv())["type"] == "connection_ack" else None
    except InvalidStatus as refused:
        return refused.response.status_code
    except ConnectionClosed as closed:
        return closed.rcvd.code


TRANSPORTS = [post, get, event_stream, socket]


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres) as running:
        yield running


@pytest.fixture(scope="module")
async def ada(world):
    return await world.account("ada")


@pytest.fixture(scope="module")
async def cookie(world, ada):
    return {"cookie": f"{COOKIE}={await signed_in(world, ada.user)}"}


@pytest.mark.parametrize("ask", TRANSPORTS)
async def test_cookie_of_own_page_counts(world, cookie, ask):
    """With an allowed Origin and the mark that only our pages send, a session's cookie is enough."""
    assert await ask(world, {**cookie, "origin": world.url}, marked=True) == IN


@pytest.mark.parametrize("ask", TRANSPORTS)
@pytest.mark.parametrize(
    ("origin", "marked", "socket_says"),
    [
        pytest.param(True, False, 4403, id="no-mark"),
        pytest.param(None, True, 4403, id="no-origin"),
        pytest.param(None, False, 4403, id="neither"),
        pytest.param("https://evil.example", True, 403, id="foreign"),
        pytest.param("https://evil.example", False, 403, id="foreign-no-mark"),
    ],
)
async def test_cookie_alone_does_not_count(world, cookie, ask, origin, marked, socket_says):
    """A cookie that comes without an allowed Origin, or without the mark, signs nobody in."""
    headers = {**cookie, **({"origin": world.url if origin is True else origin} if origin else {})}
    assert await ask(world, headers, marked=marked) == (socket_says if ask is socket else 401)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "*",
        "http://{host}",
        "http://{host}:1",
        "http://{host}:{port}0",
        "http://{host}:{port}/",
        "http://{host}:{port}/graphql",
        "http://{host}:{port}, http://{host}:{port}",
        "http://{host}.:{port}",
        "http://{host}.evil.example:{port}",
        "http://evil{host}:{port}",
        "http://user@{host}:{port}",
        "http://{host}:{port}@evil.example",
        "https://{host}:{port}",
        "HTTP://{host}:{port}",
        "http://LOCALHOST:{port}",
        "http://127.1:{port}",
        "http://2130706433:{port}",
        "http://evil.localhost:{port}",
        "http://{host}:{port}é",
        "http://loc\u00e4lhost:{port}",
        "file://",
    ],
)
async def test_origins_are_compared_whole(world, cookie, origin):
    """Nothing that merely looks like an allowed origin is taken for one."""
    host, port = world.url.removeprefix("http://").split(":")
    origin = origin.format(host=host, port=port)
    answer = await world.http.post(
        "/graphql",
        json={"query": ASK},
        headers={**cookie, MARK: "1", "origin": origin.encode("utf-8")},
    )
    assert answer.status_code == 401
    assert await socket(world, {**cookie, "origin": origin}, marked=True) == 403


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
async def test_loopback_has_three_names(world, cookie, name):
    """A server on loopback is the same server under each of its names."""
    port = world.url.rpartition(":")[2]
    assert await post(world, {**cookie, "origin": f"http://{name}:{port}"}, marked=True) == IN


@pytest.mark.parametrize("ask", TRANSPORTS)
async def test_token_needs_no_origin(world, ada, ask):
    """A program sends its token and nothing else; on a socket it may be in the handshake."""
    assert await ask(world, {"authorization": f"Bearer {ada.token}"}) == IN


@pytest.mark.parametrize("ask", [post, get, event_stream])
async def test_token_counts_from_any_origin(world, ada, ask):
    """Whoever holds a token needs no cookie's protection."""
    assert await ask(world, {"authorization": f"Bearer {ada.token}", "origin": "https://evil.example"}) == IN


@pytest.mark.parametrize("key", ["authorization", "Authorization", "token"])
async def test_token_in_connection_init(world, ada, key):
    """Browsers cannot set a socket's headers, so the token may come in the first message."""
    value = ada.token if key == "token" else f"Bearer {ada.token}"
    assert await socket(world, {}, **{key: value}) == IN


async def test_nothing_brought(world):
    """Without credentials everything is refused, and the socket says that credentials would help."""
    for ask in (post, get, event_stream):
        assert await ask(world, {}) == 401
    assert await socket(world, {}) == 4401


async def secret_of(kind, world, ada):
    match kind:
        case "invented":
            return tokens.PREFIXES[tokens.TokenKind.ACCESS] + "x" * 43
        case "session":
            return await signed_in(world, ada.user)
        case "link":
            return await link_for(world, ada.user)
    async with transactions.begin(world.server.db, None, auth.SYSTEM, request_id="test") as tx:
        token, secret = await tokens.create(tx, ada.user, name="old")
    if kind != "access":
        column = "expires_at" if kind == "expired" else "revoked_at"
        await sql(
            world, f"UPDATE access_tokens SET {column} = omoi_now() - interval '1 second' WHERE id = :id", id=token.id
        )
    return secret


@pytest.mark.parametrize("ask", TRANSPORTS)
@pytest.mark.parametrize("kind", ["expired", "revoked", "invented", "session", "link"])
async def test_what_is_no_token(world, ada, kind, ask):
    """What has ended, and what is meant for browsers, is no bearer token, also when it is sent twice."""
    headers = {"authorization": f"Bearer {await secret_of(kind, world, ada)}"}
    for _ in range(2):
        assert await ask(world, headers) == (4403 if ask is socket else 401)


@pytest.mark.parametrize("kind", ["link", "access", "invented"])
async def test_what_is_no_session(world, ada, kind):
    """A link that was not followed, and a program's token, are no cookie."""
    headers = {"cookie": f"{COOKIE}={await secret_of(kind, world, ada)}", "origin": world.url}
    assert await post(world, headers, marked=True) == 401
    assert await socket(world, headers, marked=True) == 4403


async def test_token_does_not_become_a_session_by_use(world, ada):
    """What is remembered of a token is remembered as that kind only."""
    assert await post(world, {"authorization": f"Bearer {ada.token}"}) == IN
    assert await post(world, {"cookie": f"{COOKIE}={ada.token}", "origin": world.url}, marked=True) == 401


@pytest.fixture
async def other(world, ada):
    """A second token of Ada's: its id and its text."""
    made = await ada.change("createAccessToken", "accessToken { id } token", name="second")
    return made["accessToken"]["id"], made["token"]


async def test_revoked_token_is_refused_by_the_next_request(world, ada, other):
    """The server that revokes a token does not believe it for another moment, though it was used just now."""
    token_id, secret = other
    assert await post(world, {"authorization": f"Bearer {secret}"}) == IN
    await ada.do("revokeAccessToken", "accessToken { id }", tokenId=token_id)
    assert await post(world, {"authorization": f"Bearer {secret}"}) == 401


async def test_refused_revocation_ends_nothing(world, ada, bob, other):
    """Somebody else's attempt to revoke a token changes nothing."""
    payload = await bob.change("revokeAccessToken", "accessToken { id }", tokenId=other[0])
    assert [error["code"] for error in payload["errors"]] == ["NOT_FOUND"]
    assert await post(world, {"authorization": f"Bearer {other[1]}"}) == IN


FEED = "subscription($id: ID!) { projectActivity(projectId: $id) { caughtUp activities { verb } } }"


@contextlib.asynccontextmanager
async def watching_by_socket(world, secret, apollo):
    async with Account(world, None, secret).following(FEED, id=apollo) as events:
        await events.next()

        async def last_word():
            message = await events.message()
            assert message["type"] == "error"
            return message["payload"]

        yield last_word


@contextlib.asynccontextmanager
async def watching_by_event_stream(world, secret, apollo):
    body = {"query": FEED, "variables": {"id": apollo}}
    headers = {"authorization": f"Bearer {secret}", "accept": "text/event-stream"}
    async with world.http.stream("POST", "/graphql", json=body, headers=headers) as answer:
        lines = answer.aiter_lines()

        async def data():
            async for line in lines:
                if line.startswith("data: {"):
                    return json.loads(line.removeprefix("data: "))
            return None

        await data()

        async def last_word():
            errors = (await data())["errors"]
            assert [line async for line in lines if line.startswith("event:")] == ["event: complete"]
            return errors

        yield last_word


WATCHERS = pytest.mark.parametrize("watching", [watching_by_socket, watching_by_event_stream])


@WATCHERS
async def test_revocation_ends_open_streams(world, ada, apollo, other, watching):
    """A stream ends when its token is revoked, saying why; Ada's own goes on."""
    token_id, secret = other
    async with watching(world, secret, apollo) as last_word, ada.following(FEED, id=apollo) as mine:
        await mine.next()
        await ada.do("revokeAccessToken", "accessToken { id }", tokenId=token_id)
        [error] = await last_word()
        assert error["extensions"]["code"] == "UNAUTHENTICATED"
        assert "revoked" in error["message"]
        await ticket(ada, apollo)
        assert (await mine.next())["activities"][0]["verb"] == "ticket.created"


@WATCHERS
async def test_expiry_ends_open_streams(world, ada, apollo, other, watching):
    """A token that runs out takes its streams along, without anybody doing anything."""
    async with watching(world, other[1], apollo) as last_word:
        await sql(world, "UPDATE access_tokens SET expires_at = omoi_now() WHERE name = 'second'")
        [error] = await last_word()
        assert error["extensions"]["code"] == "UNAUTHENTICATED"


async def test_watch_survives_a_fault(world, ada, apollo, other):
    """A moment in which the tokens cannot be read does not end the watch over them."""
    with structlog.testing.capture_logs() as logs:
        async with watching_by_socket(world, other[1], apollo) as last_word:
            await sql(world, "ALTER TABLE access_tokens RENAME TO elsewhere")
            await until(lambda: any(entry["event"] == "token_watch_failed" for entry in logs))
            await sql(world, "ALTER TABLE elsewhere RENAME TO access_tokens")
            await sql(world, "UPDATE access_tokens SET revoked_at = omoi_now() WHERE name = 'second'")
            assert (await last_word())[0]["extensions"]["code"] == "UNAUTHENTICATED"


async def test_use_is_noted(world, ada):
    """Owners see when a token was last used."""
    answer = await ada("{ viewer { accessTokens { lastUsedAt } } }")
    assert answer.data["viewer"]["accessTokens"][0]["lastUsedAt"]
