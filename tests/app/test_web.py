"""The pages and probes beside the API."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app import web
from app.auth import COOKIE, MARK
from app.main import Server
from tests.app.browser import link_for, signed_in, sql
from tests.servers import shared_world
from tests.world import World, project

SECURITY_HEADERS = (
    "content-security-policy",
    "referrer-policy",
    "x-content-type-options",
    "x-frame-options",
    "x-request-id",
)


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, allowed_origins=("https://app.example.com",)) as running:
        yield running


@pytest.fixture(scope="module")
async def ada(world):
    return await world.account("ada")


@pytest.fixture(autouse=True)
def no_cookies(world):
    """A browser of its own for each test."""
    world.http.cookies.clear()


async def follow(world, secret):
    return await world.http.get("/sign-in", params={"token": secret})


async def test_link_signs_a_browser_in(world, ada):
    """A link leads to the start page, with a cookie that scripts and other sites cannot use."""
    answer = await follow(world, await link_for(world, ada.user))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["cache-control"] == "no-store"
    parts = answer.headers["set-cookie"].split("; ")
    assert parts[0].startswith(f"{COOKIE}=omoi_ses_")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(parts)
    assert "Secure" not in parts


async def test_link_works_once(world, ada):
    """Who comes second is told how to get a link of their own, and gets no cookie."""
    secret = await link_for(world, ada.user)
    assert (await follow(world, secret)).status_code == 303
    answer = await follow(world, secret)
    assert answer.status_code == 403
    assert "`omoi user link`" in answer.text
    assert "set-cookie" not in answer.headers


async def test_link_works_for_ten_minutes(world, ada):
    """A link runs out by the database's clock, not one second early."""
    late, early = await link_for(world, ada.user), await link_for(world, ada.user)
    for secret, age in ((late, "10 minutes"), (early, "9 minutes 50 seconds")):
        change = "UPDATE access_tokens SET expires_at = expires_at - cast(:age AS text)::interval WHERE hash = :hash"
        await sql(world, change, age=age, hash=web.tokens.hashed(secret))
    assert (await follow(world, late)).status_code == 403
    assert (await follow(world, early)).status_code == 303


async def test_looking_at_a_link_does_not_spend_it(world, ada):
    """Programs that preview links ask with HEAD."""
    secret = await link_for(world, ada.user)
    looked = await world.http.head("/sign-in", params={"token": secret})
    assert (looked.status_code, looked.headers["allow"]) == (405, "GET")
    assert (await follow(world, secret)).status_code == 303


@pytest.mark.parametrize("token", [None, "", "omoi_link_invented", "%00", "%F0%9F", "é" * 3000])
async def test_what_is_no_link(world, token):
    """Nonsense is refused like a link that was used."""
    answer = await world.http.get("/sign-in" if token is None else f"/sign-in?token={token}")
    assert (answer.status_code, answer.headers["content-type"]) == (403, "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("address", "secure"), [("https://omoi.example.com", True), ("http://omoi.example.com", False)]
)
async def test_cookie_is_secure_where_the_address_is(settings, database_url, address, secure):
    """Behind TLS the cookie, and the browser afterwards, never goes without it."""
    world = World(settings, database_url)
    world.server = Server(settings, database_url=database_url, address=address)
    async with world.running():
        ada = await world.account("ada")
        answer = await follow(world, await link_for(world, ada.user))
        assert ("Secure" in answer.headers["set-cookie"]) == secure
        assert ("strict-transport-security" in answer.headers) == secure


async def sign_out(world, session, **headers):
    return await world.http.post("/sign-out", headers={"cookie": f"{COOKIE}={session}", **headers})


async def test_signing_out_ends_the_session(world, ada):
    """The session is over on the server too, at once, whoever kept a copy of the cookie."""
    session = await signed_in(world, ada.user)
    page = {"origin": world.url, MARK: "1"}
    ask = {"cookie": f"{COOKIE}={session}", **page}
    assert (await world.ask("{ viewer { kind } }", **ask)).status == 200
    answer = await sign_out(world, session, **page)
    assert answer.status_code == 204
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]
    assert (await world.ask("{ viewer { kind } }", **ask)).status == 401


@pytest.mark.parametrize(
    "headers", [{}, {MARK: "1"}, {"origin": "{url}"}, {"origin": "https://evil.example", MARK: "1"}]
)
async def test_foreign_page_signs_nobody_out(world, ada, headers):
    """Signing out asks for the same proof as everything else that a cookie does."""
    session = await signed_in(world, ada.user)
    headers = {name: value.format(url=world.url) for name, value in headers.items()}
    assert (await sign_out(world, session, **headers)).status_code == 403
    still = await world.ask("{ viewer { kind } }", cookie=f"{COOKIE}={session}", origin=world.url, **{MARK: "1"})
    assert still.status == 200


EVERYTHING = [
    ("GET", "/"),
    ("GET", "/graphiql"),
    ("GET", "/graphiql/assets/{asset}"),
    ("GET", "/graphiql/assets/nothing.js"),
    ("GET", "/graphql"),
    ("POST", "/graphql"),
    ("PUT", "/graphql"),
    ("OPTIONS", "/graphql"),
    ("GET", "/livez"),
    ("HEAD", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("DELETE", "/metrics"),
    ("GET", "/sign-in"),
    ("HEAD", "/sign-in"),
    ("POST", "/sign-out"),
    ("GET", "/nothing"),
    ("GET", "/graphql/"),
    ("POST", "/nothing"),
]


def asset():
    return next(web.GRAPHIQL.glob("assets/*.js")).name


def require_built():
    assert web.GRAPHIQL.exists(), "GraphiQL is not built: `make web/graphiql/dist/index.html` builds it"


@pytest.mark.parametrize(("method", "path"), EVERYTHING)
async def test_security_headers_on_everything(world, method, path):
    """Pages, assets, probes, redirects, refusals: each answer says how browsers must treat it, each header once."""
    require_built()
    answer = await world.http.request(method, path.format(asset=asset()))
    for header in SECURITY_HEADERS:
        assert len(answer.headers.get_list(header)) == 1, header
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(("path", "status"), [("/graphql", 403), ("/nothing", 403)])
async def test_security_headers_on_refused_sockets(world, path, status):
    """A handshake that is refused is an answer too."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(world.url.replace("http", "ws") + path, origin="https://evil.example")
    assert refused.value.response.status_code == status
    assert set(SECURITY_HEADERS) <= {name.lower() for name in refused.value.response.headers}


@pytest.mark.filterwarnings("ignore")
async def test_security_headers_on_faults(database_url, settings):
    """Even an answer that nobody expected has them, and shows nothing."""
    world = World(settings, database_url)
    async with world.running():
        await sql(world, "DROP TABLE access_tokens")
        answer = await follow(world, "omoi_link_x")
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")
        assert set(SECURITY_HEADERS) <= set(answer.headers)


async def test_graphiql_has_a_fresh_nonce(world):
    """Only styles that carry this very answer's nonce are obeyed."""
    require_built()
    nonces = set()
    for _ in range(3):
        answer = await world.http.get("/graphiql")
        [nonce] = re.findall(r"'nonce-([^']+)'", answer.headers["content-security-policy"])
        assert f'"{nonce}"' in answer.text
        assert "__CSP_NONCE__" not in answer.text
        assert answer.headers["cache-control"] == "no-store"
        nonces.add(nonce)
    assert len(nonces) == 3


async def test_assets_are_kept_for_ever(world):
    """A hashed file never changes, so that no browser asks for it twice."""
    require_built()
    answer = await world.http.get(f"/graphiql/assets/{asset()}")
    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path",
    [
        "../index.html",
        "../../../../app/settings.py",
        "..%2findex.html",
        "%2e%2e/index.html",
        "%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fpyproject.toml",
        "....//index.html",
        "..%5cindex.html",
        "%00",
        "/etc/passwd",
        "",
    ],
)
async def test_assets_stay_in_their_folder(world, path):
    """No spelling of a path leads out."""
    target = world.http.base_url.copy_with(raw_path=f"/graphiql/assets/{path}".encode())
    answer = await world.http.get(target, follow_redirects=False)
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/graphiql", "/graphiql/assets/index.js"])
async def test_no_graphiql_in_production(postgres, path):
    """Production serves the API and no page to try it on."""
    async with shared_world(postgres, production=True) as world:
        assert (await world.http.get(path)).status_code == 404
        assert "/graphql" in (await world.http.get("/")).text


async def preflight(world, origin):
    asked = {"origin": origin, "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization,content-type,omoi-client"
    return await world.http.options("/graphql", headers=asked)


async def test_listed_origin_may_call(world, ada):
    """A page of a listed origin may send its token, and read the answer; cookies are not for it."""
    origin = "https://app.example.com"
    answer = await preflight(world, origin)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "authorization" in answer.headers["access-control-allow-headers"]
    asked = await world.http.post(
        "/graphql",
        json={"query": "{ viewer { kind } }"},
        headers={"origin": origin, "authorization": f"Bearer {ada.token}"},
    )
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, origin)
    assert not any("allow-credentials" in header for one in (answer, asked) for header in one.headers)


@pytest.mark.parametrize("origin", ["https://evil.example", "https://app.example.com.evil.example", "null"])
async def test_other_origins_may_not_call(world, origin):
    """A page that is not listed learns nothing."""
    answer = await preflight(world, origin)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


async def test_probes_of_a_server_that_is_well(world):
    """A load balancer finds it alive and ready."""
    assert (await world.http.get("/livez")).text == "ok"
    answer = await world.http.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "problem": None})


async def test_not_ready_while_draining(database_url, settings):
    """Who leaves says so before it goes; it is still alive."""
    async with World(settings, database_url).running() as world:
        world.server.drain()
        answer = await world.http.get("/readyz")
        assert answer.status_code == 503
        assert "shutting down" in answer.json()["problem"]
        assert (await world.http.get("/livez")).status_code == 200


async def test_not_ready_over_a_foreign_schema(database_url, settings):
    """A database that was migrated past this version is no database to serve from."""
    async with World(settings, database_url).running() as world:
        await sql(world, "UPDATE alembic_version SET version_num = 'later'")
        answer = await world.http.get("/readyz")
        assert (answer.status_code, "newer" in answer.json()["problem"]) == (503, True)


async def metrics(world):
    text = (await world.http.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return text, {(sample.name, *sample.labels.values()): sample.value for sample in samples}


async def test_metrics_move(world, ada):
    """Operations and answers are counted, sockets are seen."""
    _, before = await metrics(world)
    await ada("{ viewer { kind } }")
    await ada("{ nothing }")
    _, after = await metrics(world)
    assert (
        after["omoi_graphql_operations_total", "query", "ok"]
        == before["omoi_graphql_operations_total", "query", "ok"] + 1
    )
    assert after["omoi_http_requests_total", "200"] >= before["omoi_http_requests_total", "200"] + 2
    feed = "subscription($id: ID!) { projectActivity(projectId: $id) { caughtUp } }"
    async with ada.following(feed, id=await project(ada)) as events:
        await events.next()
        _, during = await metrics(world)
    assert during["omoi_graphql_connections",] == 1
    assert during["omoi_bus_listeners",] >= 1


async def test_metrics_tell_nothing_of_tenants(world, ada):
    """No name, address, id or secret is in them, whatever was asked; nor does a client choose a label."""
    created = await project(ada, name="Canary project")
    await ada("query CanaryOperation($id: ID!) { project(id: $id) { name } }", id=created)
    await world.http.get("/canary-path")
    text, _ = await metrics(world)
    for canary in ("anary", "example.com", created, ada.token, "omoi_pat"):
        assert canary not in text
