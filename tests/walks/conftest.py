"""A data folder that a server has worked in, for the servers that are made to fail here."""

import pytest

from tests.servers import copied, short_folder, used_data


@pytest.fixture(scope="package")
async def template():
    async with used_data() as folder:
        yield folder


@pytest.fixture
def data(template):
    with short_folder() as folder:
        yield copied(template, folder / "data")
