"""Projects and their settings through the front door."""

import asyncio
import subprocess

import pytest

from tests import world as w
from tests.schema import built

PROJECT = """query($id: ID!) { project(id: $id) { name description updatedAt
  repository { host owner name cloneUrl defaultBranch }
  settings { concurrency maxAttempts model checks egress budgetUsd autoApproveSpecs autoSteer openPullRequests
  permissionMode maxTurns enableSkills enableSubagents resources { cpu memoryGb diskGb snapshot image } } } }"""
CHANGES = {
    "concurrency": 9,
    "maxAttempts": 9,
    "model": "claude-opus",
    "checks": ["pytest -q", "ruff check"],
    "egress": "OPEN",
    "budgetUsd": 12.5,
    "autoApproveSpecs": True,
    "autoSteer": False,
    "openPullRequests": True,
    "permissionMode": "PLAN",
    "maxTurns": 9,
    "enableSkills": True,
    "enableSubagents": True,
}
RESOURCES = {"cpu": 8, "memoryGb": 16, "diskGb": 100, "snapshot": "base", "image": "python:3.12"}


async def read(account, project_id):
    answer = await account(PROJECT, id=project_id)
    assert answer.errors == []
    return answer.data["project"]


async def change(account, project_id, **given):
    return await account.change("updateProject", "project { id }", projectId=project_id, **given)


def test_the_settings_here_are_all_there_are():
    """A new setting needs an example."""
    kinds = built.BUILT._schema.type_map
    assert set(kinds["ProjectSettingsInput"].fields) == {*CHANGES, "resources"}
    assert set(kinds["SandboxResourcesInput"].fields) == set(RESOURCES)


async def test_twenty_who_change_different_settings_all_get_their_way(ada, apollo):
    """At the same time, name and description among them; each change is told once."""
    wanted = [
        *({"settings": {name: value}} for name, value in CHANGES.items()),
        *({"settings": {"resources": {name: value}}} for name, value in RESOURCES.items()),
        {"name": "Artemis"},
        {"description": "Back to the moon."},
    ]
    assert len(wanted) == 20

    payloads = await asyncio.gather(*(change(ada, apollo, **one) for one in wanted))

    assert [payload["errors"] for payload in payloads] == [[]] * 20
    now = await read(ada, apollo)
    assert now["settings"] == {**CHANGES, "resources": RESOURCES}
    assert (now["name"], now["description"]) == ("Artemis", "Back to the moon.")
    seen = await ada("query($id: ID!) { project(id: $id) { activity { totalCount } } }", id=apollo)
    assert seen.data["project"]["activity"]["totalCount"] == 21


async def test_null_brings_a_setting_back_to_its_default(ada):
    """One by one, and for all resources at once."""
    project = await w.project(ada, settings={**CHANGES, "resources": RESOURCES})
    untouched = await read(ada, await w.project(ada))

    await change(ada, project, settings={**dict.fromkeys(CHANGES), "resources": {"cpu": None}})
    now = (await read(ada, project))["settings"]
    assert now == {**untouched["settings"], "resources": {**RESOURCES, "cpu": 2}}
    await change(ada, project, settings={"resources": None})
    assert (await read(ada, project))["settings"] == untouched["settings"]


async def test_a_repository_is_linked_replaced_and_unlinked(ada, apollo):
    """GitHub by owner and name, any other by its address; null leaves none."""
    github = {"host": "GITHUB", "owner": "ada", "name": "apollo", "cloneUrl": "https://github.com/ada/apollo.git"}
    other = {"host": "GIT", "owner": None, "name": None, "cloneUrl": "https://example.com/apollo.git"}
    for given, found in (
        ({"owner": "ada", "name": "apollo"}, {**github, "defaultBranch": "main"}),
        ({"cloneUrl": other["cloneUrl"], "defaultBranch": "trunk"}, {**other, "defaultBranch": "trunk"}),
        ({"owner": "ada", "name": "apollo", "defaultBranch": None}, {**github, "defaultBranch": "main"}),
        (None, None),
    ):
        assert (await change(ada, apollo, repository=given))["errors"] == []
        assert (await read(ada, apollo))["repository"] == found


async def test_the_servers_own_repositories_are_linked_by_admins(world, ada, settings):
    """An owner keeps what an admin linked, may change all besides, and links no other of its kind."""
    grace = await world.account("grace", admin=True)
    for name in ("apollo", "artemis"):
        subprocess.run(["git", "init", "-q", "--bare", settings.data / "repositories" / name], check=True)
    mine, other = ({"cloneUrl": str(settings.data / "repositories" / name)} for name in ("apollo", "artemis"))
    project = await w.project(grace, repository=mine)
    await w.share(grace, project, ada, "OWNER")

    refused = await change(ada, project, repository=other)
    assert w.refusals(refused) == [("INVALID_INPUT", ["repository", "cloneUrl"])]
    assert "Only an admin" in refused["errors"][0]["message"]
    assert (await change(ada, project, name="Moon", repository={**mine, "defaultBranch": "trunk"}))["errors"] == []
    assert (await read(ada, project))["repository"]["defaultBranch"] == "trunk"
    assert (await change(grace, project, repository=other))["errors"] == []


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({"name": ""}, [["name"]]),
        ({"name": " \u3000 "}, [["name"]]),
        ({"name": "x" * 101}, [["name"]]),
        ({"name": "a\nb"}, [["name"]]),
        ({"description": "x" * 64_001}, [["description"]]),
        ({"settings": {"concurrency": 0}}, [["settings", "concurrency"]]),
        ({"settings": {"concurrency": 1_001}}, [["settings", "concurrency"]]),
        ({"settings": {"maxAttempts": 21}}, [["settings", "maxAttempts"]]),
        ({"settings": {"maxTurns": -1}}, [["settings", "maxTurns"]]),
        ({"settings": {"budgetUsd": -0.01}}, [["settings", "budgetUsd"]]),
        ({"settings": {"budgetUsd": 1e300}}, [["settings", "budgetUsd"]]),
        ({"settings": {"model": ""}}, [["settings", "model"]]),
        (
            {"settings": {"checks": ["pytest", " ", "x" * 1_001]}},
            [["settings", "checks", "1"], ["settings", "checks", "2"]],
        ),
        ({"settings": {"checks": ["pytest"] * 21}}, [["settings", "checks"]]),
        (
            {"settings": {"resources": {"cpu": 65, "image": ""}}},
            [["settings", "resources", "cpu"], ["settings", "resources", "image"]],
        ),
        (
            {"settings": {"resources": {"memoryGb": 0, "diskGb": 2_001}}},
            [["settings", "resources", name] for name in ("memoryGb", "diskGb")],
        ),
        ({"repository": {}}, [["repository"]]),
        ({"repository": {"owner": "a", "name": "b", "cloneUrl": "https://example.com/c"}}, [["repository"]]),
        ({"repository": {"cloneUrl": "https://ada:secret@example.com/c"}}, [["repository", "cloneUrl"]]),
        ({"repository": {"owner": "a", "name": "b", "defaultBranch": "a..b"}}, [["repository", "defaultBranch"]]),
        (
            {"repository": {"owner": "a b", "name": "b/", "defaultBranch": "-"}},
            [["repository", "defaultBranch"], ["repository", "owner"], ["repository", "name"]],
        ),
        (
            {"name": "", "settings": {"concurrency": 0, "maxTurns": 0}},
            [["name"], ["settings", "concurrency"], ["settings", "maxTurns"]],
        ),
        ({"name": "a\0b", "settings": {"checks": ["\0"]}}, [["name"], ["settings", "checks", "0"]]),
    ],
    ids=lambda given: ascii(given)[:50],
)
async def test_every_refusal_names_its_place(given, places, ada, apollo):
    """All of them at once, when it is made and when it is changed; nothing is stored."""
    before = await read(ada, apollo)

    for payload in (
        await change(ada, apollo, **given),
        await ada.change("createProject", "project { id }", **{"name": "Gemini", **given}),
    ):
        assert payload["project"] is None
        assert w.refusals(payload) == [("INVALID_INPUT", place) for place in places]
        assert all(error["message"].endswith(".") for error in payload["errors"])
    assert await read(ada, apollo) == before
    assert (await ada("{ projects { totalCount } }")).data["projects"]["totalCount"] == 1


async def test_what_is_stored_has_no_space_around_it(ada):
    """Names, models, checks and images alike."""
    given = {"model": " m ", "checks": ["  pytest -q "], "resources": {"image": " python "}}
    now = await read(ada, await w.project(ada, name="  Apollo ", settings=given))

    settings = now["settings"]
    assert (now["name"], settings["model"], settings["checks"], settings["resources"]["image"]) == (
        "Apollo",
        "m",
        ["pytest -q"],
        "python",
    )


async def test_the_feed_names_what_was_changed(ada, apollo):
    """What was given and is as it was before is not among it."""
    await change(ada, apollo, name="Apollo", description="Up.", repository={"owner": "ada", "name": "x"}, settings=None)
    answer = await ada("query($id: ID!) { project(id: $id) { activity(last: 1) { nodes { summary } } } }", id=apollo)

    [entry] = answer.data["project"]["activity"]["nodes"]
    assert entry["summary"] == "changed description and repository of the project"


async def test_values_that_no_type_has_are_refused_as_a_whole(ada, apollo):
    """An unknown enum value, a number beyond 32 bits, a fraction, a field that is not there."""
    for settings in (
        {"egress": "ALL"},
        {"concurrency": 2**31},
        {"maxTurns": 1.5},
        {"colour": "red"},
        {"checks": [None]},
        {"budgetUsd": "1"},
    ):
        answer = await ada(
            "mutation($input: UpdateProjectInput!) { updateProject(input: $input) { project { id } } }",
            input={"projectId": apollo, "settings": settings},
        )
        assert set(answer.codes) == {"BAD_USER_INPUT"}, settings
