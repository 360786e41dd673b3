"""`omoi user` and `omoi token`: accounts on the server's own machine, with no token needed and the server up or not."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from app import auth, ids, tokens, transactions, users
from app.cli import database, up
from app.db import Database
from app.enums import PrincipalKind
from app.errors import InvalidInput, NotFound
from app.models import AccessToken, User
from app.settings import Settings

Result = TypeVar("Result")
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

user_commands = typer.Typer(
    no_args_is_help=True, help="Accounts of people and of programs.", epilog="Example: omoi user list"
)
token_commands = typer.Typer(
    no_args_is_help=True, help="Access tokens for programs.", epilog="Example: omoi token create --name ci"
)


@user_commands.command("create", epilog="Example: omoi user create ada@example.com --name Ada")
def create_user(
    context: typer.Context,
    email: Annotated[str, typer.Argument(help="The address that names the account.")],
    name: Annotated[str | None, typer.Option(help="What others see; the address when left out.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May make users and see the whole server's health.")] = False,
    service: Annotated[bool, typer.Option("--service", help="An account for a program; it cannot sign in.")] = False,
    json_: Json = False,
) -> None:
    """Make an account, and a link with which the person signs in the first time."""
    settings: Settings = context.obj().settings
    kind = PrincipalKind.SERVICE if service else PrincipalKind.USER

    async def act(db: Database) -> tuple[User, str | None]:
        async with transactions.begin(db, None, auth.SYSTEM, request_id="command-line") as tx:
            user = await users.create(tx, email=email, name=name or email, admin=admin, kind=kind)
        return user, None if service else await up.sign_in_link(db, user, _address(settings))

    user, link = _run(settings, act)
    if json_:
        _print_json({**_told_user(user), "signInUrl": link})
        return
    console = Console()
    console.print(f"Made {user.email} ({ids.encode('user', user.id)}).", soft_wrap=True)
    if link:
        console.print(f"Sign in, once, within ten minutes: {link}", soft_wrap=True)


@user_commands.command("link", epilog="Example: omoi user link ada@example.com")
def link_user(
    context: typer.Context,
    email: Annotated[str | None, typer.Argument(help="Whose; the first admin's when left out.")] = None,
    json_: Json = False,
) -> None:
    """Make a new sign-in link for a person."""
    settings: Settings = context.obj().settings

    async def act(db: Database) -> str:
        return await up.sign_in_link(db, await _chosen(db, email), _address(settings))

    link = _run(settings, act)
    _print_json({"signInUrl": link}) if json_ else print(link)


@user_commands.command("list", epilog="Example: omoi user list --json")
def list_users(context: typer.Context, json_: Json = False) -> None:
    """All accounts, oldest first."""

    async def act(db: Database) -> list[User]:
        async with db.reading() as session:
            return list(await users.everyone(session))

    everyone = [_told_user(user) for user in _run(context.obj().settings, act)]
    _print_json(everyone) if json_ else _print_table(everyone, ("id", "email", "name", "kind", "admin"))


@token_commands.command("create", epilog="Example: OMOI_TOKEN=$(omoi token create --name ci)")
def create_token(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Address of its account; the first admin's when left out.")] = None,
    name: Annotated[str, typer.Option(help="What it is for.")] = "command line",
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="Days that it is good for; for ever if not said.")
    ] = None,
    json_: Json = False,
) -> None:
    """Make an access token and print it, this once."""
    expires_at = datetime.now(UTC) + timedelta(days=days) if days else None

    async def act(db: Database) -> tuple[AccessToken, str, User]:
        owner = await _chosen(db, user)
        async with transactions.begin(db, None, auth.SYSTEM, request_id="command-line") as tx:
            token, secret = await tokens.create(tx, owner, name=name, expires_at=expires_at)
        return token, secret, owner

    token, secret, owner = _run(context.obj().settings, act)
    _print_json({**_told_token(token, owner), "token": secret}) if json_ else print(secret)


@token_commands.command("list", epilog="Example: omoi token list --json")
def list_tokens(context: typer.Context, json_: Json = False) -> None:
    """All access tokens that still count, oldest first."""

    async def act(db: Database) -> list[Any]:
        async with db.reading() as session:
            return list(await tokens.all_with_users(session))

    told = [_told_token(token, owner) for token, owner in _run(context.obj().settings, act)]
    _print_json(told) if json_ else _print_table(told, ("id", "name", "user", "createdAt", "expiresAt", "lastUsedAt"))


@token_commands.command("revoke", epilog="Example: omoi token revoke token_01jx5t0k3vf1gsrq5d9x3mbrwe")
def revoke_token(
    context: typer.Context, token_id: Annotated[str, typer.Argument(help="Its id, as `omoi token list` shows it.")]
) -> None:
    """The token counts no more from now on, for open subscriptions too."""

    async def act(db: Database) -> AccessToken:
        try:
            async with transactions.begin(db, None, auth.SYSTEM, request_id="command-line") as tx:
                return await tokens.revoke(tx, ids.require(token_id, "token", "tokenId"), of_user=None)
        except NotFound as error:
            raise InvalidInput(f"No token has the id {token_id}. `omoi token list` shows those that count.") from error

    token = _run(context.obj().settings, act)
    print(f"Revoked {token.name}.")


def _run(settings: Settings, act: Callable[[Database], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        async with database.borrowed(settings, holder="omoi") as db:
            return await act(db)

    return asyncio.run(main())


async def _chosen(db: Database, email: str | None) -> User:
    if email is None:
        admin, _ = await up.require_admin(db)
        return admin
    async with db.reading() as session:
        user = await users.by_email(session, email)
    if user is None:
        raise InvalidInput(f"Nobody has the address {email}. `omoi user list` shows who there is.")
    return user


def _address(settings: Settings) -> str:
    """Where the link leads: to the server that runs, or to where it would."""
    serving = None if settings.database_url else database.address_of_server(settings)
    return settings.public_url or serving or up.local_address(settings.host, settings.port)


def _told_user(user: User) -> dict[str, Any]:
    return {
        "id": ids.encode("user", user.id),
        "email": user.email,
        "name": user.name,
        "kind": user.kind.value,
        "admin": user.admin,
    }


def _told_token(token: AccessToken, owner: User) -> dict[str, Any]:
    return {
        "id": ids.encode("token", token.id),
        "name": token.name,
        "user": owner.email,
        "createdAt": _moment(token.created_at),
        "expiresAt": _moment(token.expires_at),
        "lastUsedAt": _moment(token.last_used_at),
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if moment else None


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*("" if row[column] is None else str(row[column]) for column in columns))
    Console().print(table)
