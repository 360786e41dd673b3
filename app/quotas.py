"""How much each sandbox may report: so much a second, after a burst. Each process counts for itself, in memory."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.errors import RateLimited
from app.settings import Settings

REMEMBERED = 10_000  # sandboxes; one that is forgotten may begin with a burst again
GRAIN_SECONDS = 0.1  # of what is said about when to come back


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    burst: float


class Bucket:
    """Fills up to its burst. It may be drawn below nothing once: what is larger than a burst passes when it is full."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._level, self._at = rate, rate.burst, now

    def missing_seconds(self, amount: float, now: float) -> float:
        """How long until so much may be drawn; nothing when it may be now."""
        self._level = min(self._rate.burst, self._level + (now - self._at) * self._rate.per_second)
        self._at = now
        return max(0.0, min(amount, self._rate.burst) - self._level) / self._rate.per_second

    def draw(self, amount: float) -> None:
        self._level -= amount


class Quotas:
    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates = (
            Rate(settings.sandbox_events_per_second, settings.sandbox_events_burst),
            Rate(settings.sandbox_bytes_per_second, settings.sandbox_bytes_burst),
        )
        self._buckets: OrderedDict[UUID, Sequence[Bucket]] = OrderedDict()

    def admit(self, sandbox_id: UUID, *, events: int, size_bytes: int) -> None:
        """Let one report pass as a whole, or raise RateLimited with the time to wait; one without events counts too."""
        now, wanted = self._clock(), (max(1, events), size_bytes)
        buckets = self._of(sandbox_id, now)
        wait = max(bucket.missing_seconds(amount, now) for bucket, amount in zip(buckets, wanted, strict=True))
        if wait:
            raise RateLimited(
                "This sandbox reports more than it may. Send the same again when the time has passed.",
                details={"retryAfter": round(math.ceil(wait / GRAIN_SECONDS) * GRAIN_SECONDS, 1)},
            )
        for bucket, amount in zip(buckets, wanted, strict=True):
            bucket.draw(amount)

    def _of(self, sandbox_id: UUID, now: float) -> Sequence[Bucket]:
        buckets = self._buckets.get(sandbox_id)
        if buckets is None:
            buckets = self._buckets[sandbox_id] = [Bucket(rate, now) for rate in self._rates]
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(sandbox_id)
        return buckets
