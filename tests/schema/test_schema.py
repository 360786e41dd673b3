"""The schema as a whole: rules everywhere, and every field has something behind it."""

from pathlib import Path

import pytest
import strawberry

import schema
from app import auth, sandboxes
from app.errors import AppError
from resolvers.projects import project
from schema.fields import query
from schema.rules import reached, require_rules
from tests import world as w
from tests.schema import boxes, built, scene


@reached("An object whose plain fields follow it.")
class Careful:
    name: str = "careful"


@strawberry.type
class Careless:
    name: str = "careless"


@strawberry.type
class CarefulQuery:
    guarded: Careful = query(project, Careful, "Asks first.", rule=auth.SIGNED_IN)


@strawberry.type
class CarelessQuery:
    @strawberry.field
    def open_to_all(self) -> str:
        return "whatever"


@strawberry.type
class CarelessTypeQuery:
    guarded: Careless = query(project, Careless, "Asks first.", rule=auth.SIGNED_IN)


@pytest.mark.parametrize(
    ("root", "field"), [(CarelessQuery, "CarelessQuery.open_to_all"), (CarelessTypeQuery, "Careless.name")]
)
def test_a_field_without_a_rule_is_refused(root, field):
    """By its name, on a root and on any object; with rules everywhere a schema passes."""
    require_rules(strawberry.Schema(CarefulQuery))
    with pytest.raises(AppError, match=f"{field} declares no rule"):
        require_rules(strawberry.Schema(root))


def test_every_rule_names_an_argument_that_is_there():
    """A rule about an argument that nobody can give would refuse everybody."""
    for field in built.root_fields():
        if field.rule.role is None:
            continue
        arguments = field.definition.args
        if field.operation == "mutation":
            arguments = arguments["input"].type.of_type.fields
        assert str(arguments[field.of].type) == "ID!", field.name


def test_the_exported_schema_is_this_one():
    """The file that clients are built from; `make sdl` writes it."""
    exported = (Path(schema.__file__).parent / "schema.graphql").read_text()
    assert exported.strip() == built.BUILT.as_str().strip()


def test_everything_says_what_it_is():
    """Each type, field, argument and value of the schema carries a description."""
    silent = []
    for name, kind in built.BUILT._schema.type_map.items():
        if name.startswith("__") or name in ("String", "Int", "Float", "Boolean", "ID"):
            continue
        if not kind.description and name not in ("Query", "Mutation", "Subscription"):
            silent.append(name)
        for below, definition in [*getattr(kind, "fields", {}).items(), *getattr(kind, "values", {}).items()]:
            silent += [] if definition.description else [f"{name}.{below}"]
            given = getattr(definition, "args", {}).items()
            silent += [f"{name}.{below}({one})" for one, argument in given if not argument.description]
    assert silent == []


@pytest.fixture
async def laid(world):
    """A scene of an admin's, who sees all that can be seen."""
    grace = await world.account("grace", admin=True)
    laid = await scene.lay(grace, await world.account("carol"))
    await work(laid.box)
    return grace, laid


async def work(box):
    """A bit of every shape that an event has, and an end with all that it may bring."""
    check = {"command": "pytest", "passed": True, "output": "1 passed", "durationMs": 9}
    tool = {"toolUseId": "t1", "tool": "Bash", "output": "ok"}
    edit = boxes.edited("a.txt", "CREATED")
    shapes = {"MESSAGE": {"text": "Hi"}, "TOOL_USE": tool, "TOOL_COMPLETED": tool, "FILE_EDITED": edit, "LOG": {}}
    for type_, payload in {**shapes, "CHECK_COMPLETED": check}.items():
        await box.did(type_, payload, turn=1)
    async with box.world.server.db.writing() as session:
        step = {"name": "machine", "startedAt": "2026-01-31T12:00:00Z", "finishedAt": None, "error": None}
        await sandboxes.note_boot(session, box.key, [step])
    transcript = await box.upload(b"{}\n")
    await box.finish(checks=[check], sessionId="s", transcriptBlob=transcript)


async def test_every_field_of_every_object_can_be_read(laid):
    """Documents written from the schema itself answer without an error, and leave out no type."""
    grace, objects = laid
    box = objects.sandbox
    documents = [
        *(
            f'{{ node(id: "{one}") {{ ... on {kind} {{ {built.selection(kind)} }} }} }}'
            for kind, one in {
                "Project": objects.project,
                "Ticket": objects.ticket,
                "Task": objects.task,
                "User": grace.id,
                "AccessToken": objects.token,
                "Sandbox": objects.sandbox,
                "Message": objects.message,
            }.items()
        ),
        f'{{ task(id: "{objects.box.task}") {{ {built.selection("Task")} }} }}',
        f'{{ sandbox(id: "{box}") {{ events(last: 50) {{ {built.selection("SandboxEventConnection")} }} }} }}',
        f'{{ sandbox(id: "{box}") {{ trajectory {{ {built.selection("TurnConnection")} }} }} }}',
        f"{{ sandboxes {{ {built.selection('SandboxConnection')} }} }}",
        f'{{ task(id: "{objects.cancelled}") {{ {built.selection("Task")} }} }}',
        f"{{ viewer {{ {built.selection('Viewer')} }} }}",
        f"{{ health {{ {built.selection('SystemHealth')} }} }}",
        f"{{ projects(first: 1) {{ {built.selection('ProjectConnection')} }} }}",
    ]
    met = set()
    for document in documents:
        answer = await grace(document)
        assert answer.errors == [], document
        met |= set(names_in(answer.data))

    assert set(built.object_types()) - met == {"StreamReset", "UserError"}  # read where they occur


def names_in(value):
    """Every `__typename` of an answer whose object has further fields."""
    if isinstance(value, dict):
        if len(value) > 1 and "__typename" in value:
            yield value["__typename"]
        for below in value.values():
            yield from names_in(below)
    elif isinstance(value, list):
        for below in value:
            yield from names_in(below)


async def test_settings_that_nobody_chose_have_their_defaults(ada):
    """As the schema tells them, in the contract's words."""
    answer = await ada(
        f"query($id: ID!) {{ project(id: $id) {{ settings {{ {built.selection('ProjectSettings')} }} }} }}",
        id=await w.project(ada),
    )

    assert answer.data["project"]["settings"] == {
        "__typename": "ProjectSettings",
        "concurrency": 4,
        "maxAttempts": 3,
        "model": None,
        "resources": {
            "__typename": "SandboxResources",
            "cpu": 2,
            "memoryGb": 4,
            "diskGb": 10,
            "snapshot": None,
            "image": None,
        },
        "checks": [],
        "egress": "REGISTRIES",
        "budgetUsd": None,
        "autoApproveSpecs": False,
        "autoSteer": True,
        "openPullRequests": False,
        "permissionMode": "ACCEPT_EDITS",
        "maxTurns": 100,
        "enableSkills": False,
        "enableSubagents": False,
    }
