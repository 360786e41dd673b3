"""What a worker works with in tests: a server, a remote, a model."""

import pytest

from demo import model
from tests.worker import box, plane, remote


@pytest.fixture(scope="module")
async def thinker():
    async with model.serving() as url:
        yield url


@pytest.fixture
async def server():
    async with plane.serving() as made:
        yield made


@pytest.fixture
async def origin(tmp_path):
    async with remote.serving(tmp_path, {"README.md": "hello\n"}) as made:
        yield made


@pytest.fixture
def work(tmp_path, server, origin, thinker):
    """Starts a worker on a task."""

    def start(task, **more):
        environ = box.environment(tmp_path / "home", server, thinker, task, **{"REPO_URL": origin.url, **more})
        return box.running(tmp_path / "home", environ)

    return start
