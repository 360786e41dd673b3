"""Whether a sandbox may ask the model now, and with whose key: asked anew for each call."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app import budgets, credentials, usage
from app.enums import CredentialKind
from app.errors import Forbidden
from app.models import Sandbox
from app.secrets import Keys
from app.upstream import Upstream


async def admit(
    session: AsyncSession, sandbox_id: UUID, *, keys: Keys, upstream: Upstream, allow_unisolated: bool
) -> str | None:
    """The user's own key, if there is one. Refused when the project has no money left, and for a real model where
    nothing keeps the sandbox from its machine: its key may have come after the launch.
    """
    await budgets.require(session, sandbox_id)
    payer = await usage.payer(session, sandbox_id)
    secret = await credentials.use(session, keys, payer, CredentialKind.ANTHROPIC)
    if upstream.is_real(secret) and not allow_unisolated and await _is_exposed(session, sandbox_id):
        raise Forbidden(
            "This sandbox was launched without isolation, for the scripted model alone. "
            "Set OMOI_ALLOW_UNISOLATED=true on the server to let a real model work there."
        )
    return secret


async def _is_exposed(session: AsyncSession, sandbox_id: UUID) -> bool:
    return bool(await session.scalar(select(Sandbox.exposed).where(Sandbox.id == sandbox_id)))
