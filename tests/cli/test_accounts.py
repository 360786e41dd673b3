"""`omoi user` and `omoi token`: beside a running server, without one, and on a database of the operator's own."""

import json
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cli.conftest import refused
from tests.servers import PATIENCE_SECONDS, Done, omoi


@pytest.fixture(params=["running", "stopped", "external"])
def place(request, data):
    """Where the command finds its database."""
    match request.param:
        case "running":
            return {"OMOI_DATA": request.getfixturevalue("served").data}
        case "stopped":
            return {"OMOI_DATA": request.getfixturevalue("old_data")}
        case _:
            return {"DATABASE_URL": request.getfixturevalue("database_url"), "OMOI_DATA": data}


def read(done: Done):
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_life_of_an_account(command, place):
    """A person, their link, a token, its end: each is told as JSON for scripts."""
    ada = read(command("user", "create", "Ada@Example.com", "--name", "Ada", "--admin", "--json", **place))
    assert (ada["email"], ada["name"], ada["kind"], ada["admin"]) == ("ada@example.com", "Ada", "user", True)
    assert urlsplit(ada["signInUrl"]).path == "/sign-in"
    assert ada["id"] in {user["id"] for user in read(command("user", "list", "--json", **place))}
    assert read(command("user", "link", "ada@example.com", "--json", **place))["signInUrl"] != ada["signInUrl"]
    token = read(
        command("token", "create", "--user", "ada@example.com", "--name", "ci", "--days", 2, "--json", **place)
    )
    assert token["token"].startswith("omoi_pat_")
    listed = {one["id"]: one for one in read(command("token", "list", "--json", **place))}
    assert listed[token["id"]] == {name: value for name, value in token.items() if name != "token"}
    assert listed[token["id"]]["expiresAt"] > listed[token["id"]]["createdAt"]
    assert command("token", "revoke", token["id"], **place).out == "Revoked ci.\n"
    assert token["id"] not in {one["id"] for one in read(command("token", "list", "--json", **place))}
    assert command("token", "revoke", token["id"], **place).code == 0


def test_words_for_people(command, served):
    """Without --json the same is told in lines, and a token alone, so that a script can take it."""
    place = {"OMOI_DATA": served.data}
    assert "Made grace@example.com (user_" in command("user", "create", "grace@example.com", **place).out
    assert "grace@example.com" in command("user", "list", **place).out
    secret = command("token", "create", **place).out
    assert secret.startswith("omoi_pat_")
    assert secret.count("\n") == 1
    assert "command line" in command("token", "list", **place).out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["user", "create", "admin@localhost"], "admin@localhost has an account already."),
        (["user", "create", "nobody"], "no address like"),
        (["user", "create", "a@b", "--name", " "], "name"),
        (["user", "link", "nobody@example.com"], "`omoi user list`"),
        (["token", "create", "--user", "nobody@example.com"], "`omoi user list`"),
        (["token", "create", "--name", ""], "name"),
        (["token", "revoke", "token_00000000000000000000000000"], "`omoi token list`"),
        (["token", "revoke", "nonsense"], "`omoi token list`"),
    ],
)
def test_refusals(command, served, words, why):
    """What the server would refuse is refused in one sentence, with status 1."""
    assert why in refused(command(*words, OMOI_DATA=served.data), 1)


def test_service_accounts(command, served):
    """An account for a program has no link; nobody signs in with it."""
    place = {"OMOI_DATA": served.data}
    made = read(command("user", "create", "ci@example.com", "--service", "--json", **place))
    assert (made["kind"], made["signInUrl"]) == ("service", None)
    assert "Only people sign in" in refused(command("user", "link", "ci@example.com", **place), 1)


async def test_token_of_a_service(served):
    """A service's token asks as SERVICE."""
    place = {"OMOI_DATA": served.data}
    await omoi("user", "create", "bot@example.com", "--service", **place)
    secret = (await omoi("token", "create", "--user", "bot@example.com", **place)).out.strip()
    answer = await ask(served, secret, "{ viewer { kind user { name } } }")
    assert answer["data"]["viewer"] == {"kind": "SERVICE", "user": {"name": "bot@example.com"}}


async def ask(server, secret, document):
    headers = {"authorization": f"Bearer {secret}"}
    return (await server.http.post("/graphql", json={"query": document}, headers=headers)).json()


async def test_link_leads_to_the_running_server(served):
    """The link works as it stands, though the server took whatever port was free."""
    link = (await omoi("user", "link", OMOI_DATA=served.data)).out.strip()
    assert link.startswith(served.address)
    async with httpx.AsyncClient() as browser:
        assert (await browser.get(link)).status_code == 303


def test_link_follows_the_settings(command, old_data):
    """Without a running server the link leads to where it will be."""
    link = command("user", "link", OMOI_DATA=old_data, PORT=1234).out
    assert link.startswith("http://127.0.0.1:1234/sign-in?token=")
    assert command("user", "link", OMOI_DATA=old_data, HOST="::1").out.startswith("http://[::1]:18000/sign-in")
    link = command("user", "link", OMOI_DATA=old_data, OMOI_PUBLIC_URL="https://omoi.example.com/").out
    assert link.startswith("https://omoi.example.com/sign-in?token=")


FEED = "subscription($id: ID!) { projectActivity(projectId: $id) { caughtUp } }"


async def test_revoking_ends_streams_of_the_running_server(served):
    """A token that another process revokes is of no use to the server's open streams either."""
    place = {"OMOI_DATA": served.data}
    made = json.loads((await omoi("token", "create", "--json", **place)).out)
    create = 'mutation { createProject(input: {name: "Apollo"}) { project { id } } }'
    project = (await ask(served, made["token"], create))["data"]["createProject"]["project"]["id"]
    headers = {"authorization": f"Bearer {made['token']}", "accept": "text/event-stream"}
    body = {"query": FEED, "variables": {"id": project}}
    async with served.http.stream("POST", "/graphql", json=body, headers=headers, timeout=PATIENCE_SECONDS) as answer:
        lines = answer.aiter_lines()
        assert "errors" not in await anext(line async for line in lines if line.startswith("data: {"))
        assert (await omoi("token", "revoke", made["id"], **place)).code == 0
        last = json.loads((await anext(line async for line in lines if line.startswith("data: {")))[6:])
    assert last["errors"][0]["extensions"]["code"] == "UNAUTHENTICATED"
    assert (await ask(served, made["token"], "{ viewer { kind } }"))["errors"]


DATABASES = [
    ("mysql://ada:canary@host/db", "names mysql"),
    ("canary", "is no database address"),
    ("postgresql://ada:canary@host:port/db", "is no database address"),
    ("postgresql://ada:canary@127.0.0.1:1/db", "db on 127.0.0.1:1 cannot be reached"),
    ("postgresql://ada:canary@no.such.host.invalid/db", "no.such.host.invalid:5432 cannot be reached"),
    ("postgresql://ada:canary@127.0.0.1:1/db?password=canary", "cannot be reached"),
    ("postgresql://ada:canary@127.0.0.1:1/db?color=red", "part that is of no use here"),
    ("postgresql://ada:canary@127.0.0.1:1/db?sslmode=perhaps", "sslmode"),
    ("postgresql:///db?host=/nowhere&port=x", "part that is of no use here"),
]


@pytest.mark.parametrize(("url", "why"), DATABASES)
@pytest.mark.parametrize("words", [["user", "list"], ["migrate"]], ids=" ".join)
def test_wrong_database(command, data, words, url, why):
    """A DATABASE_URL that leads nowhere is one sentence, status 2, and no password."""
    message = refused(command(*words, DATABASE_URL=url, OMOI_DATA=data), 2)
    assert why in message
    assert "DATABASE_URL" in message
    assert "canary" not in message


def test_database_that_refuses(command, database_url, data):
    """A role or a database that does not exist is named by Postgres itself."""
    stranger = database_url.replace("postgres@", "stranger:canary@")
    message = refused(command("user", "list", DATABASE_URL=stranger, OMOI_DATA=data), 2)
    assert 'role "stranger" does not exist' in message
    assert "canary" not in message
    name = database_url.rpartition("/")[2].partition("?")[0]
    gone = database_url.replace(name, "gone")
    assert 'database "gone" does not exist' in refused(command("user", "list", DATABASE_URL=gone, OMOI_DATA=data), 2)
