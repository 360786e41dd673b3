"""The commands of a push: one branch passes, byte for byte and however it is cut, and nothing else does."""

import pytest

from app.pushes import HEAD_BYTES, Push, PushRefused

OLD, NEW, NONE = b"1" * 40, b"2" * 40, b"0" * 40
MINE = b"refs/heads/feature/1-a"
PACK = b"PACK\x00\x00\x00\x02 and whatever follows\x00refs/heads/main"


def packet(line):
    return b"%04x%s" % (len(line) + 4, line)


def command(ref, old=OLD, new=NEW, abilities=b"\x00 report-status side-band-64k"):
    return packet(b"%s %s %s%s" % (old, new, ref, abilities))


def request(*lines):
    return b"".join(lines) + b"0000" + PACK


def feed(body, size, passed):
    """In pieces of this size; what git would be given goes into `passed`."""
    push = Push("feature/1-a")
    for at in range(0, len(body), size):
        passed.append(push.feed(body[at : at + size]))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 10_000])
@pytest.mark.parametrize(
    "lines",
    [
        [],
        [command(MINE)],
        [command(MINE, old=NONE)],
        [command(MINE, abilities=b"")],
        [command(MINE, abilities=b"\n")],
        [packet(b"shallow " + OLD), command(MINE)],
        [command(MINE, old=b"1" * 64, new=b"2" * 64)],
    ],
)
def test_own_branch_passes(lines, size):
    """A push to the branch reaches git as it was sent, wherever its bytes were cut."""
    passed = []
    feed(request(*lines), size, passed)
    assert b"".join(passed) == request(*lines)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    "lines",
    [
        [command(b"refs/heads/main")],
        [command(b"refs/tags/v1")],
        [command(b"refs/heads/feature/1-ab")],
        [command(b"refs/heads/feature/1-a/b")],
        [command(b"refs/heads/Feature/1-a")],
        [command(MINE + b"\n")],
        [command(b" " + MINE)],
        [command(b"HEAD")],
        [command(MINE), command(b"refs/heads/main", abilities=b"")],
        [command(b"refs/heads/main\x00refs/heads/feature/1-a", abilities=b"")],
        [command(MINE, new=NONE)],
        [command(MINE, old=NONE, new=NONE)],
        [command(MINE, new=b"0" * 64, old=b"1" * 64)],
        [packet(b"push-cert\x00 report-status"), command(MINE)],
        [packet(b"")],
        [b"0001", command(MINE)],
        [b"zzzz"],
        [b"-001"],
        [b"+010" + b"x" * 12],
        [b" 010" + b"x" * 12],
        [packet(b"shallow x")],
    ],
)
def test_everything_else_is_refused(lines, size):
    """Another ref, one more ref, a deletion, or what git would not send: no byte of it is passed on."""
    passed = []
    with pytest.raises(PushRefused):
        feed(request(*lines), size, passed)
    assert b"".join(passed) == b""


def test_endless_commands():
    """Commands that do not end are refused before they fill the memory."""
    passed = []
    with pytest.raises(PushRefused):
        feed(command(MINE) * HEAD_BYTES, 1_000, passed)
    assert b"".join(passed) == b""
