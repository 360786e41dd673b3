"""Local providers on folders of their own, in each tier."""

import pytest

from orchestrator.providers import Tier
from orchestrator.providers.local.provider import LocalProvider
from tests.servers import short_folder


@pytest.fixture(scope="module")
def sandboxes():
    with short_folder() as folder:
        yield folder / "sandboxes"


@pytest.fixture(scope="module")
async def boxes(sandboxes):
    """A provider whose sandboxes are boxes."""
    provider = LocalProvider(sandboxes, deployment="test", machines=4, tier=Tier.NAMESPACES)
    await provider.start("http://127.0.0.1:9")
    yield provider
    for machine in await provider.list():
        await provider.delete(machine.name)


@pytest.fixture(scope="module")
async def processes(sandboxes):
    """A provider whose sandboxes are processes without a box."""
    provider = LocalProvider(sandboxes.with_name("plain"), deployment="test", machines=4, tier=Tier.PROCESS)
    await provider.start("http://127.0.0.1:9")
    yield provider
    for machine in await provider.list():
        await provider.delete(machine.name)
