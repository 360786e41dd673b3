"""Quotas: a sandbox that reports too much is told when to come back, as a whole and before anything is done."""

import pytest

from app import ids
from app.errors import RateLimited
from app.quotas import Quotas
from app.settings import Settings

ONE, OTHER = ids.new(), ids.new()


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def quotas(clock, tmp_path):
    settings = Settings(
        data=tmp_path,
        sandbox_events_per_second=10,
        sandbox_events_burst=50,
        sandbox_bytes_per_second=1000,
        sandbox_bytes_burst=5000,
    )
    return Quotas(settings, clock=clock)


def wait(quotas, events=0, size_bytes=0, sandbox_id=ONE):
    """How long it is told to wait; 0 when it is admitted."""
    try:
        quotas.admit(sandbox_id, events=events, size_bytes=size_bytes)
    except RateLimited as refusal:
        return refusal.details["retryAfter"]
    return 0


def test_a_burst_passes_and_then_the_rate_counts(quotas, clock):
    """What was used up comes back with time, never to more than a burst."""
    assert [wait(quotas, 25), wait(quotas, 25), wait(quotas, 25)] == [0, 0, 2.5]
    clock.now += 2.5
    assert [wait(quotas, 25), wait(quotas, 5)] == [0, 0.5]
    clock.now += 1000
    assert [wait(quotas, 50), wait(quotas, 1)] == [0, 0.1]


def test_bytes_count_as_well_as_events(quotas, clock):
    """The longer of the two waits is told."""
    assert wait(quotas, 40, 5000) == 0
    assert wait(quotas, 1, 2000) == 2.0
    assert wait(quotas, 50, 2000) == 4.0
    clock.now += 2
    assert wait(quotas, 1, 2000) == 0


def test_what_is_refused_uses_nothing_up(quotas, clock):
    """A batch passes whole or not at all, so that sending it again does not put it off."""
    assert wait(quotas, 50) == 0
    assert [wait(quotas, 30, 5000) for _ in range(5)] == [3.0] * 5
    clock.now += 3
    assert wait(quotas, 30, 5000) == 0


def test_what_is_larger_than_a_burst_passes_when_there_is_a_whole_one(quotas, clock):
    """Else it would wait for ever; who comes next waits for it."""
    assert wait(quotas, 80) == 0
    assert wait(quotas, 1) == 3.1
    assert wait(quotas, 80) == 8.0
    clock.now += 8
    assert wait(quotas, 80) == 0


def test_reports_without_events_count(quotas):
    """Signs of life in a loop are a load too."""
    assert [wait(quotas) for _ in range(51)] == [0] * 50 + [0.1]


def test_each_sandbox_has_its_own(quotas):
    assert wait(quotas, 50) == 0
    assert wait(quotas, 50, sandbox_id=OTHER) == 0
    assert wait(quotas, 1) == wait(quotas, 1, sandbox_id=OTHER) == 0.1


def test_only_so_many_are_remembered(quotas, monkeypatch):
    """The one that was not heard of for longest is forgotten first."""
    monkeypatch.setattr("app.quotas.REMEMBERED", 2)
    assert wait(quotas, 50) == wait(quotas, 50, sandbox_id=OTHER) == 0
    assert wait(quotas, 1) > 0
    assert wait(quotas, 50, sandbox_id=ids.new()) == 0
    assert wait(quotas, 1) > 0
    assert wait(quotas, 1, sandbox_id=OTHER) == 0
