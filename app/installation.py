"""Which installation a database belongs to: its name among machines, and the root key that its secrets need."""

import hmac
import secrets
import string

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from app.db import Database
from app.errors import CannotStart
from app.models import Installation
from app.secrets import Keys

DEPLOYMENT_CHARS = 6
ALPHABET = string.ascii_lowercase + string.digits


async def require(db: Database, keys: Keys) -> str:
    """The deployment's name, chosen by the first server. Refuses a root key that is not the first server's."""
    async with db.writing() as session:
        deployment = "".join(secrets.choice(ALPHABET) for _ in range(DEPLOYMENT_CHARS))
        first = {"id": 1, "deployment": deployment, "root_key_hash": keys.fingerprint}
        await session.execute(insert(Installation).values(first).on_conflict_do_nothing())
        found = (await session.scalars(select(Installation))).one()
    if not hmac.compare_digest(found.root_key_hash, keys.fingerprint):
        raise CannotStart(
            "This database was set up with another root key, without which its secrets cannot be read. Set "
            "OMOI_ROOT_KEY to it, or bring back the root.key of the data folder with which it was set up."
        )
    return found.deployment
