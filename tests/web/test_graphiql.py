"""GraphiQL in a real browser, against a real server, under the policy that the server sends."""

from pathlib import Path

import pytest

from tests.npm import node

FEED = 'subscription S {{ projectActivity(projectId: "{id}") {{ caughtUp cursor activities {{ seq verb }} }} }}'


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_queries_and_subscriptions_run_without_one_violation(ada, apollo, theme, tmp_path):
    """The page works as a person uses it: nothing is blocked, nothing comes from elsewhere, no token is kept."""
    [seen] = await node(
        "graphiql",
        folder=Path(__file__).parent,
        HOME=str(tmp_path),
        BASE_URL=ada.world.url,
        OMOI_TEST_TOKEN=ada.token,
        OMOI_TEST_SUBSCRIPTION=FEED.format(id=apollo),
        OMOI_TEST_SCREENSHOT=str(tmp_path / "graphiql.png"),
        OMOI_TEST_THEME=theme,
    )

    assert (tmp_path / "graphiql.png").stat().st_size > 0
    assert seen["steps"]
