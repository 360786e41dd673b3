"""The examples of the docs beside a whole server: what they do when something is not as it should be."""

from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from app.settings import Settings
from tests import examples
from tests.line import laid
from tests.npm import running
from tests.schema import boxes
from tests.servers import until

each = pytest.mark.parametrize("name", examples.COMMANDS)
IMPATIENT = {"timeout=45": "timeout=1", "45_000": "1_000", "keepAlive: 15_000": "keepAlive: 300"}


@pytest.fixture
def settings(tmp_path):
    """With a poll that soon notices what was changed behind the server's back."""
    return Settings(data=tmp_path / "data", stream_poll_seconds=0.2, orchestrator_enabled=False)


@pytest.fixture
def folder(tmp_path):
    return examples.laid(tmp_path)


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


def example(name, box, account, folder, code=0):
    return examples.example(name, box.id, folder=folder, url=account.world.url, token=account.token, code=code)


async def change(world, statement):
    async with world.server.db.writing() as session:
        await session.execute(text(statement))


async def test_the_types_are_right(folder):
    """The TypeScript compiler finds nothing to say, as strict as it can be."""
    tsc = (folder / "node_modules/.bin/tsc", "--noEmit", "--strict", "--target", "es2024", "--module", "nodenext")
    async with running(*tsc, "--types", "node", "--ignoreConfig", "follow.ts", folder=folder):
        pass


@each
async def test_a_sandbox_is_followed_to_its_end(name, box, ada, folder):
    """What was there before, then what comes; the hash is compared when it is caught up, and at the end."""
    await box.did("LOG", {"text": "x"})
    async with example(name, box, ada, folder) as program:
        await until(lambda: "verified up to 3" in program.said)
        await box.finish()
    assert program.said == [
        "1 SANDBOX_STATUS",
        "2 SANDBOX_STATUS",
        "3 LOG",
        "verified up to 3",
        "4 SANDBOX_STATUS",
        "5 COMPLETED",
        "verified up to 5",
    ]


@each
@pytest.mark.parametrize("token", ["bob's", "wrong"])
async def test_nobody_comes_back_who_is_not_welcome(name, token, box, bob, folder):
    """A sandbox that is not theirs, and a token that nobody has, end it at once."""
    bob.token = bob.token if token == "bob's" else "omoi_pat_wrong"
    async with example(name, box, bob, folder, code=1) as program:
        pass
    assert program.said == []
    assert any(word in program.complaints for word in ("NOT_FOUND", "4403", "401"))


@each
async def test_events_that_are_not_the_servers_are_noticed(name, box, ada, folder, world):
    """Another hash, and it ends with an error."""
    await change(world, "UPDATE streams SET digest = sha256(digest)")
    async with example(name, box, ada, folder, code=1) as program:
        pass
    assert "not the server's" in program.complaints


@each
async def test_it_begins_again_where_the_cursor_is_of_no_use(name, box, ada, folder, world):
    """A restored stream is followed from its beginning, and verified anew."""
    async with example(name, box, ada, folder) as program:
        await until(lambda: "verified up to 2" in program.said)
        await change(world, "UPDATE streams SET epoch = 'restored'")
        await until(lambda: any(line.startswith("again from the beginning: ") for line in program.said))
        await box.finish()
    again = program.said.index(next(line for line in program.said if line.startswith("again")))
    assert [line.split()[0] for line in program.said[again + 1 :] if line[0].isdigit()] == ["1", "2", "3", "4"]
    assert program.said[-1] == "verified up to 4"


@each
async def test_a_line_that_falls_silent_is_given_up(name, box, ada, folder):
    """It dials again although nobody has told it that the connection is gone, and misses nothing."""
    program = (folder / name).read_text()
    for patient, impatient in IMPATIENT.items():
        program = program.replace(patient, impatient)
    (folder / name).write_text(program)
    async with laid() as line:
        line.target = urlsplit(box.world.url).port
        async with examples.example(name, box.id, folder=folder, url=line.address, token=ada.token) as program:
            await until(lambda: "verified up to 2" in program.said)
            before = line.dialled
            line.cut()
            await box.finish()
            await until(lambda: line.dialled > before)
            line.mend()
    assert [said for said in program.said if said[0].isdigit()][2:] == ["3 SANDBOX_STATUS", "4 COMPLETED"]
    assert program.said[-1] == "verified up to 4"
