"""How Alembic reaches the database: the URL is passed in by app/upgrade.py; versions never import the models."""

import asyncio

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.models import Base

LOCK_TIMEOUT = "10s"


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        # Another migration is waited for as long as it lasts; a table that others use is not.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('omoios migrations'))")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        context.run_migrations()


async def main() -> None:
    url = context.config.attributes["url"]
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


asyncio.run(main())
