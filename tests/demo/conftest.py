"""One scripted model for all tests here: it keeps nothing, so they cannot meet in it."""

import pytest

from demo import model
from tests.demo import agent


@pytest.fixture(scope="session")
async def url():
    async with model.serving() as address:
        yield address


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """The folder of an agent that inherits nothing from this process."""
    agent.clear_environment(monkeypatch, tmp_path)
    return tmp_path / "work"
