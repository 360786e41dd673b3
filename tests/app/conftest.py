"""A task whose sandbox has a row and a worker's token, but no machine."""

import pytest

from tests.app import claimed


@pytest.fixture
async def box(ada, apollo):
    return await claimed.box(ada, apollo)
