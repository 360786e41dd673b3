"""The examples of the docs, each run as it stands against a project with a bit of everything."""

import re
from pathlib import Path

import pytest
from graphql import OperationType, get_operation_ast, parse, validate

import schema
from tests.schema import boxes, built, scene

ROOT = Path(schema.__file__).parents[1]
WORKERS = {"reportEvents", "workerInbox", "acknowledgeMessages", "issueGitCredential", "finishSandbox"}


def examples():
    """Every block of GraphQL in the guides, by its page and the name of its operation."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```graphql\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            operation = get_operation_ast(parse(block))
            yield pytest.param(block, id=f"{page.stem}-{operation.name.value if operation.name else ''}")


EXAMPLES = list(examples())


@pytest.fixture
async def laid(ada, bob):
    """A scene in whose sandbox one event of each shape has happened."""
    made = await scene.lay(ada, bob)
    for type_, payload in SHAPES.items():
        await made.box.did(type_, payload, turn=1)
    return made


SHAPES = {
    "MESSAGE": {"text": "I begin."},
    "TOOL_USE": {"toolUseId": "t1", "tool": "Bash", "input": {"command": "true"}},
    "TOOL_COMPLETED": {"toolUseId": "t1", "tool": "Bash", "isError": False, "output": "", "durationMs": 3},
    "FILE_EDITED": boxes.edited("a.txt"),
    "CHECK_STARTED": {"command": "pytest -q", "round": 1},
    "LOG": {"text": "It goes on.", "level": "info"},
}


def test_there_are_examples():
    """The pages are found, and both of the guides' readers are served: who follows, and who writes a worker."""
    names = {example.id for example in EXAMPLES}
    assert {"api-Feed", "api-Events", "api-Changes", "api-Receipts", "api-Report"} <= names


@pytest.mark.parametrize("document", EXAMPLES)
async def test_an_example_runs(ada, laid, document):
    """It is valid, and answered without an error by who may ask."""
    parsed = parse(document)
    assert validate(built.BUILT._schema, parsed) == []
    operation = get_operation_ast(parsed)
    field = operation.selection_set.selections[0].name.value
    known = {"project": laid.project, "sandbox": laid.sandbox, "at": 3, "after": None}
    known["input"] = scene.examples(laid).get(field)
    given = {name: known[name] for name in (one.variable.name.value for one in operation.variable_definitions or ())}
    asker = laid.box if field in WORKERS else ada
    if operation.operation is OperationType.SUBSCRIPTION:
        async with asker.following(document, **given) as told:
            assert await told.next()
    else:
        answer = await asker(document, **given)
        assert (answer.status, answer.errors) == (200, []), answer.body
        assert not answer.data[field].get("errors")
