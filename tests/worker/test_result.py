"""The result that an agent leaves: a file that it may have made into anything."""

import json

import pytest

from tests.worker.box import BRANCH
from worker.run import LARGEST_RESULT_BYTES

NEVER_JSON = "[" * 100_000


@pytest.mark.parametrize(
    ("made", "output", "warned"),
    [
        ("python3 -c \"print('[' * 50 + ']' * 50, end='')\" > $OMOI_RESULT", json.loads("[" * 50 + "]" * 50), False),
        ("python3 -c \"print('[' * 90 + ']' * 90, end='')\" > $OMOI_RESULT", "[" * 90 + "]" * 90, False),
        ("python3 -c \"print('[' * 100000, end='')\" > $OMOI_RESULT", NEVER_JSON, False),
        ("truncate -s 64G $OMOI_RESULT", "\N{REPLACEMENT CHARACTER}" * LARGEST_RESULT_BYTES, False),
        ("mkdir $OMOI_RESULT", None, True),
        ("mkfifo $OMOI_RESULT", None, True),
        ("ln -s /dev/zero $OMOI_RESULT", None, True),
        ("echo 7 > seven; ln -s $PWD/seven $OMOI_RESULT", 7, False),
    ],
)
async def test_odd_results(work, server, origin, made, output, warned):
    """Whatever lies where the result is expected, the work is saved and told; what cannot be read is said."""
    async with work(f"[[obedient]]\n```\n{made}; echo hi > hi.txt\n```\n") as worker:
        assert (await worker.ended())[0] == 0
    [report] = server.finished
    assert (report["success"], report["commit"]) == (True, origin.head(BRANCH))
    assert report["output"] == output
    assert any("The result is left out" in told["text"] for told in server.of("LOG")) == warned
