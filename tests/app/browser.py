"""What a browser does that other clients do not: follow a sign-in link, keep a cookie, and name an origin."""

from sqlalchemy import text

from app import auth, tokens, transactions
from app.auth import COOKIE


async def link_for(world, user) -> str:
    """The secret of a new sign-in link."""
    async with transactions.begin(world.server.db, None, auth.SYSTEM, request_id="test") as tx:
        return await tokens.create_sign_in(tx, user)


async def signed_in(world, user) -> str:
    """The secret of a session that a link was spent on."""
    answer = await world.http.get("/sign-in", params={"token": await link_for(world, user)})
    world.http.cookies.clear()
    return answer.cookies[COOKIE]


async def sql(world, statement: str, **values) -> None:
    """Change the database behind the server's back."""
    async with world.server.db.writing() as session:
        await session.execute(text(statement), values)
