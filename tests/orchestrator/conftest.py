"""A provider elsewhere, and what the loops work with when it is theirs."""

import pytest

from tests.orchestrator.outside import Outside, site_of


@pytest.fixture
def outside():
    return Outside()


@pytest.fixture
def site(world, outside):
    return site_of(world, outside)
