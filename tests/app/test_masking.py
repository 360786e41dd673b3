"""Masking: a known secret is not found again in what is stored, however it was written and wherever it was cut."""

import base64
import json
import re
from urllib.parse import quote, quote_plus
from uuid import UUID

import pytest
from sqlalchemy import text

from app import auth, credentials, transactions
from app.enums import CredentialKind
from app.masking import MARK, Mask, Masks
from app.secrets import Keys
from app.settings import GitCredential, Settings
from tests.app.claimed import box
from tests.world import share

TOKEN = Keys(bytes(32)).sandbox_token(UUID(int=7), 3)
SECRETS = [
    TOKEN,
    "sk-ant-api03-9dK2_mQx7-Lw0RzT4vYb1NcE8uHs6JgF5aPiOe3X-AAAA",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    'Pa/ss "w\\ord"+%?ü',
    "hunter22",
]
MASK = Mask(SECRETS)


def encodings(secret):
    data = secret.encode()
    yield secret
    yield json.dumps(secret)[1:-1] if secret.isascii() else json.dumps(secret, ensure_ascii=False)[1:-1]
    yield json.dumps(json.dumps(secret, ensure_ascii=False), ensure_ascii=False)
    yield secret.replace("\\", "\\\\").replace('"', '\\"').replace("/", "\\/")
    yield from (quote(secret), quote(secret, safe=""), quote_plus(secret))
    yield re.sub("%..", lambda escape: escape[0].lower(), quote(secret, safe=""))
    yield from (data.hex(), data.hex().upper())
    for before in (b"", b"x", b"xy", b"user:"):
        for after in (b"", b"\n", b"yz"):
            yield base64.b64encode(before + data + after).decode()
            yield base64.urlsafe_b64encode(before + data + after).decode()


def readable(found, secret):
    """Whether somebody who decodes what was left could have the secret."""
    data = secret.encode()
    cores = {base64.b64encode(bytes(n) + data).decode()[(0, 2, 3)[n] : (n + len(data)) * 8 // 6] for n in range(3)}
    cores |= {core.replace("+", "-").replace("/", "_") for core in cores}
    return any(form in found for form in {secret, data.hex(), data.hex().upper(), quote(secret, safe=""), *cores})


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_no_way_to_write_a_secret_is_left(secret):
    """As it is, in JSON, URLs, hex and base64 at each alignment; what stands around it stays."""
    for form in encodings(secret):
        found = MASK.text(f"before {form} after {form}")
        assert found.startswith("before ")
        assert " after " in found
        assert MARK in found
        assert not readable(found, secret), form
        assert not readable(MASK.bytes_(f"before {form} after".encode()).decode(), secret), form


@pytest.mark.parametrize("around", ["{}", "{}\n", '"{}"', "\t'{}' \r\n", "`{}`"])
@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_no_cut_leaves_a_secret(secret, around):
    """Printed in two pieces, in two texts, it cannot be put together again, wherever it was cut."""
    for form in {secret, secret.encode().hex(), *encodings(secret)}:
        for cut in range(1, len(form)):
            first, second = around.format(f"log: {form[:cut]}"), around.format(f"{form[cut:]} end")
            pieces = [around.format(form[:cut]), around.format(form[cut:])]
            for one, other in ((first, second), pieces):
                joined = MASK.text(one).strip(" \t\r\n\"'`") + MASK.text(other).strip(" \t\r\n\"'`")
                assert not readable(joined, secret), (form, cut)


@pytest.mark.parametrize(
    "harmless",
    [
        "omoi_sbx_",
        "export OMOI_SANDBOX_TOKEN=omoi_sbx_",
        "sk-ant-",
        "sk-ant-api03-",
        "ghp_",
        "",
        " ",
        "hunt",
        "er2",
        "user",
        "The token begins with `ghp_`",
        "x" * 1000,
        "16C7e42F292c",
    ],
)
def test_what_is_no_secret_stays(harmless):
    """What every token of a kind begins with, and a small part of one, says nothing and is left alone."""
    assert MASK.text(harmless) == harmless
    assert MASK.bytes_(harmless.encode()) == harmless.encode()
    assert Mask(["short77", ""]).text("short77") == "short77"


def test_value_is_masked_throughout():
    """In lists, objects and their keys; numbers and the like stay, and so does the given value."""
    given = {"a": [TOKEN, {"b": f"x{TOKEN}y", TOKEN: None}], "n": 1, "t": True, "f": 1.5}
    assert MASK.value(given) == {"a": [MARK, {"b": f"x{MARK}y", MARK: None}], "n": 1, "t": True, "f": 1.5}
    assert given["a"][0] == TOKEN
    assert MASK.value([TOKEN[:60], "x"]) == [MARK, "x"]
    assert MASK.value(["x" * 5000 + TOKEN[:60] + "\n"]) == ["x" * 5000 + MARK + "\n"]
    assert MASK.value(["'" + TOKEN[30:] + "x" * 5000]) == ["'" + MARK + "x" * 5000]


def test_clean_value_is_not_copied():
    """What holds no secret comes back as the very object, be it large or odd."""
    for given in ({"a": ["x" * 1000, {"b": [1, None]}]}, [], "", None, 7, ["\ud800", "\0", "€" * 500]):
        assert MASK.value(given) is given
        assert Mask([]).value(given) is given


def test_secrets_that_overlap_are_both_taken_out():
    """One that holds another, and two that share characters, leave nothing between them."""
    mask = Mask(["abcdefgh", "abcdefghijklmnop", "mnop-qrstuvw"])
    assert mask.text("<abcdefghijklmnop-qrstuvw>") == f"<{MARK}>"
    assert mask.text("<abcdefgh> <abcdefghijklmnop>") == f"<{MARK}> <{MARK}>"
    assert mask.text("abcdefgh" * 3) == MARK


SERVER = Settings(
    anthropic_api_key="sk-ant-of-the-server",
    anthropic_auth_token="sk-ant-oat-of-the-server",
    git_credentials=(GitCredential("https://git.example.com", "omoi", "git-password-of-the-server"),),
)


async def keep(world, account, kind, secret):
    principal = auth.Principal(kind=account.user.kind, id=account.user.id, name=account.user.name)
    async with transactions.begin(world.server.db, None, principal, request_id="test") as tx:
        await credentials.keep(tx, world.server.keys, kind, secret)


async def known(world, masks, sandbox):
    async with world.server.db.reading() as session:
        return (await masks.of(session, sandbox.id)).secrets


@pytest.fixture
def settings(tmp_path):
    """No orchestrator, which would take the tasks."""
    return Settings(data=tmp_path, orchestrator_enabled=False)


@pytest.fixture
def masks(world):
    return Masks(world.server.db, world.server.keys, SERVER)


async def test_sandbox_knows_its_secrets(world, ada, bob, apollo, masks):
    """Its token, the server's keys, and what its task's user has; nothing of other people."""
    await keep(world, ada, CredentialKind.GITHUB, "ghp_of_ada_of_ada")
    await keep(world, ada, CredentialKind.ANTHROPIC, "sk-ant-of-ada")
    await keep(world, bob, CredentialKind.GITHUB, "ghp_of_bob_of_bob")
    one = await box(ada, apollo)
    of_server = {"sk-ant-of-the-server", "sk-ant-oat-of-the-server", "git-password-of-the-server"}
    assert await known(world, masks, one.sandbox) == {one.token, "ghp_of_ada_of_ada", "sk-ant-of-ada"} | of_server


async def test_task_of_a_member_knows_both_users(world, ada, bob, apollo, masks):
    """What the maker of the task has, and what the maker of the project has."""
    await share(ada, apollo, bob)
    await keep(world, ada, CredentialKind.GITHUB, "ghp_of_ada_of_ada")
    await keep(world, bob, CredentialKind.GITHUB, "ghp_of_bob_of_bob")
    one = await box(bob, apollo)
    assert {"ghp_of_ada_of_ada", "ghp_of_bob_of_bob"} <= await known(world, masks, one.sandbox)


async def test_new_credential_is_masked_at_once(world, ada, apollo, masks):
    """The moment it is set, without waiting; the one it replaces stays masked, for the sandbox may have seen it."""
    one = await box(ada, apollo)
    await keep(world, ada, CredentialKind.GITHUB, "ghp_first_first")
    assert "ghp_first_first" in await known(world, masks, one.sandbox)
    await keep(world, ada, CredentialKind.GITHUB, "ghp_second_second")
    assert {"ghp_first_first", "ghp_second_second"} <= await known(world, masks, one.sandbox)


async def test_credential_that_cannot_be_read_stops_nobody(world, ada, apollo, masks):
    """Whoever changed its row changed no sandbox's right to report."""
    await keep(world, ada, CredentialKind.GITHUB, "ghp_of_ada_of_ada")
    async with world.server.db.writing() as session:
        await session.execute(text("UPDATE credentials SET sealed = '\\x00'"))
    one = await box(ada, apollo)
    assert one.token in await known(world, masks, one.sandbox)
