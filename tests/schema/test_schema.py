"""The schema as a whole: rules everywhere, and every field has something behind it."""

from pathlib import Path

import pytest
import strawberry

import schema
from app import auth
from app.errors import AppError
from app.models import Project
from resolvers.projects import project
from schema.fields import query, require_rules
from tests import world as w
from tests.schema import built, scene


@strawberry.type
class Careful:
    guarded: str = query(project, str, "Asks first.", rule=auth.SIGNED_IN)


@strawberry.type
class Careless:
    @strawberry.field
    def open_to_all(self) -> str:
        return Project.__tablename__


def test_a_root_field_without_a_rule_is_refused():
    """By its name; with a rule it passes."""
    require_rules(Careful)
    with pytest.raises(AppError, match=r"Careless\.open_to_all declares no rule"):
        require_rules(Careful, Careless)


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
    return grace, await scene.lay(grace, await world.account("carol"))


async def test_every_field_of_every_object_can_be_read(laid):
    """Documents written from the schema itself answer without an error, and leave out no type."""
    grace, objects = laid
    documents = [
        *(
            f'{{ node(id: "{one}") {{ ... on {kind} {{ {built.selection(kind)} }} }} }}'
            for kind, one in {
                "Project": objects.project,
                "Ticket": objects.ticket,
                "Task": objects.task,
                "User": grace.id,
                "AccessToken": objects.token,
            }.items()
        ),
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
