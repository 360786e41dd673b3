"""GraphiQL in a real browser, against a real server, under the policy that the server sends."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FEED = 'subscription S {{ projectActivity(projectId: "{id}") {{ caughtUp cursor activities {{ seq verb }} }} }}'


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_queries_and_subscriptions_run_without_one_violation(ada, apollo, theme, tmp_path):
    """The page works as a person uses it: nothing is blocked, nothing comes from elsewhere, no token is kept."""
    env = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "BASE_URL": ada.world.url,
        "OMOI_TEST_TOKEN": ada.token,
        "OMOI_TEST_SUBSCRIPTION": FEED.format(id=apollo),
        "OMOI_TEST_SCREENSHOT": str(tmp_path / "graphiql.png"),
        "OMOI_TEST_THEME": theme,
        **{name: value for name, value in os.environ.items() if name == "OMOI_TEST_BROWSER"},
    }
    process = await asyncio.create_subprocess_exec(
        "node", "graphiql.mjs", cwd=FOLDER, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120):
        seen, complaints = await process.communicate()

    assert process.returncode == 0, seen.decode() + complaints.decode()
    assert json.loads(seen)
