"""Commands in this process, and one server in a process of its own to run them beside."""

import sys
from dataclasses import fields

import pytest

from app import cli
from app.settings import Settings
from tests.servers import Done, copied, short_folder, up, used_data


@pytest.fixture
def data():
    with short_folder(quick=True) as folder:
        yield folder / "data"


@pytest.fixture(scope="module")
async def template():
    async with used_data() as folder:
        yield folder


@pytest.fixture
def old_data(template, data):
    """A data folder that a server has worked in."""
    return copied(template, data)


@pytest.fixture(scope="module")
async def served():
    """A running server, and its data folder."""
    with short_folder(quick=True) as folder:
        async with up(folder / "data") as server:
            server.data = folder / "data"
            yield server


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `omoi` as it would be run in a shell, with no setting in its environment but those given."""

    def run(*arguments, **environment) -> Done:
        for name in [knob.metadata["env"] for knob in fields(Settings)] + ["OMOI_CONFIG"]:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["omoi", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def refused(done: Done, code: int) -> str:
    """The one sentence on standard error."""
    assert done.code == code, done
    assert done.err.startswith("omoi: ")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    return done.err.removeprefix("omoi: ").strip()
