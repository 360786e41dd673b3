"""Time, as the database tells it: leases, expiry and every stored moment come from one SQL function."""

from datetime import datetime

from sqlalchemy import DateTime, Function, func, select
from sqlalchemy.ext.asyncio import AsyncSession

FUNCTION = "omoi_now"


def now() -> Function[datetime]:
    """The database's clock. Tests shift it for one session with `SET omoi.clock_shift = '1 hour'`."""
    return getattr(func, FUNCTION)(type_=DateTime(timezone=True))  # type: ignore[no-any-return]


async def read(session: AsyncSession) -> datetime:
    return (await session.scalars(select(now()))).one()
