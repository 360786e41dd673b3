"""Trusted documents: their ids, both manifests, and the mode that accepts nothing else."""

import hashlib
import json

import pytest

from app.enums import PrincipalKind
from app.errors import CannotStart
from app.settings import Settings
from schema import documents
from tests.schema import toy

HELLO, OLD, STREAM = "query Hello { hello }", "query Old { hello }", "subscription Ticks { ticks(to: 1) { number } }"


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def settings(tmp_path):
    now, before = tmp_path / "documents.json", tmp_path / "previous.json"
    now.write_text(json.dumps({sha256(HELLO): HELLO, f"sha256:{sha256(STREAM)}": STREAM}))
    before.write_text(json.dumps({sha256(OLD): OLD}))
    return {"documents": now, "previous_documents": before}


async def code(served, client, **request):
    response = await client.post(served.url, json=request)
    if "data" in response.json():
        return "data"
    [error] = response.json()["errors"]
    return error["extensions"]["code"]


async def test_an_id_stands_for_its_text(settings, client):
    """`documentId`, with or without its algorithm, and Apollo's extension name a document of either manifest."""
    async with toy.serve(Settings(**settings)) as served:
        for request in (
            {"documentId": sha256(HELLO)},
            {"documentId": f"sha256:{sha256(HELLO).upper()}"},
            {"documentId": sha256(OLD)},
            {"extensions": {"persistedQuery": {"version": 1, "sha256Hash": sha256(HELLO)}}},
            {"query": HELLO, "extensions": {"persistedQuery": {"version": 1, "sha256Hash": sha256(HELLO)}}},
        ):
            assert await code(served, client, **request) == "data"
        response = await client.get(served.url, params={"documentId": sha256(HELLO)})
        assert response.json() == {"data": {"hello": "hello you"}}


async def test_an_unknown_id_is_not_found(settings, client):
    """The code tells a client to send the text; the message is the one that Apollo's client looks for."""
    async with toy.serve(Settings(**settings)) as served:
        response = await client.post(served.url, json={"documentId": sha256("{ other }")})
        [error] = response.json()["errors"]
        assert (error["message"], error["extensions"]["code"]) == (
            "PersistedQueryNotFound",
            "PERSISTED_QUERY_NOT_FOUND",
        )


async def test_a_text_must_be_the_one_that_its_id_names(served, client):
    """An id cannot stand for another text."""
    assert await code(served, client, query=HELLO, documentId=sha256(OLD)) == "BAD_USER_INPUT"


async def test_only_trusted_documents(settings, client):
    """With the setting on, callers from outside may send nothing else, while our own programs may."""
    async with toy.serve(Settings(**settings, trusted_documents_only=True)) as served:
        assert await code(served, client, query="{ hello }") == "PERSISTED_QUERY_REQUIRED"
        assert await code(served, client, query=HELLO) == "data"
        assert await code(served, client, documentId=sha256(OLD)) == "data"
        served.toy.kind = PrincipalKind.SERVICE
        assert await code(served, client, query="{ hello }") == "PERSISTED_QUERY_REQUIRED"
        served.toy.kind = PrincipalKind.SANDBOX
        assert await code(served, client, query="{ hello }") == "data"


async def test_sockets_know_them_too(settings, talk):
    """A subscription by id needs no text, and in the strict mode a text is refused for that operation alone."""
    async with toy.serve(Settings(**settings, trusted_documents_only=True)) as served, talk(served) as socket:
        await socket.subscribe("1", {"extensions": {"persistedQuery": {"sha256Hash": sha256(STREAM)}}})
        assert (await socket.hear())["payload"] == {"data": {"ticks": {"number": 0}}}
        assert (await socket.hear())["type"] == "complete"
        await socket.subscribe("2", {"query": "subscription { forever }"})
        refused = await socket.hear()
        assert (refused["id"], refused["type"]) == ("2", "error")
        assert refused["payload"][0]["extensions"]["code"] == "PERSISTED_QUERY_REQUIRED"


@pytest.mark.parametrize(
    "manifest", ["", "[]", '{"abc": "{ hello }"}', '{"' + "0" * 64 + '": "{ hello }"}', '{"' + "0" * 64 + '": 1}']
)
def test_a_broken_manifest_stops_the_start(tmp_path, manifest):
    """A manifest that is not one, or whose text is not what its name says, is found at start and not by users."""
    file = tmp_path / "documents.json"
    file.write_text(manifest)
    with pytest.raises(CannotStart, match="manifest"):
        documents.load(Settings(documents=file))


def test_a_missing_manifest_stops_the_start(tmp_path):
    """A setting that names no file is a mistake."""
    with pytest.raises(CannotStart, match="manifest"):
        documents.load(Settings(previous_documents=tmp_path / "nowhere.json"))
