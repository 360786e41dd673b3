"""The `omoi` command."""

import asyncio
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app import settings as settings_module
from app import streams, upgrade
from app.cli import accounts, database, demo, up
from app.db import Database, DatabaseUnavailable
from app.errors import AppError, CannotStart
from app.settings import Loaded, Settings

REFUSED = 1
CANNOT = 2

commands = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="OmoiOS: tickets and specs become finished branches.",
    epilog="Example: omoi up",
)
commands.add_typer(accounts.user_commands, name="user")
commands.add_typer(accounts.token_commands, name="token")


@commands.callback()
def read_settings(
    context: typer.Context,
    data: Annotated[Path | None, typer.Option(help="Folder of the embedded database.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings; `omoi config` names them.")] = None,
) -> None:
    def load(**parameters: Any) -> Loaded:
        return settings_module.load({"data": data, **parameters}, file=config)

    context.obj = load  # for the command to call, which may have parameters of its own and may only be asked for help


@commands.command("up", epilog="Example: omoi up --port 8080")
def start(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
) -> None:
    """Start the server with all it needs, and print where it is and how to sign in."""
    up.run(context.obj(host=host, port=port).settings, Console())


@commands.command("demo", epilog="Example: omoi demo")
def show(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
) -> None:
    """Start everything, let an agent finish a ticket in front of you, and end."""
    settings = context.obj(port=port).settings
    demo.run(settings, Console())


@commands.command("tour", epilog="Example: omoi tour --url https://omoi.example.com --repository owner/name")
def tour_server(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="Where the server is; the one of this machine otherwise.")] = None,
    token: Annotated[str | None, typer.Option(help="An access token.", envvar="OMOI_TOKEN")] = None,
    repository: Annotated[
        str | None, typer.Option(help="owner/name on GitHub, or any address to clone from; none: an empty one.")
    ] = None,
) -> None:
    """Have any server finish a ticket, step by step: the test of an installation."""
    asyncio.run(demo.visit(context.obj().settings, Console(), url=url, token=token, repository=repository))


@commands.command("migrate", epilog="Example: DATABASE_URL=postgresql://… omoi migrate")
def migrate(context: typer.Context) -> None:
    """Bring the database to the schema that this version needs."""
    before, after = asyncio.run(_migrate(context.obj().settings))
    print(f"The database is at schema {after}." if before == after else f"Migrated from {before or 'none'} to {after}.")


@commands.command("renew-streams", epilog="Example: omoi renew-streams")
def renew_streams(context: typer.Context) -> None:
    """After a backup was restored: every client is told to begin its streams anew."""
    print(f"Streams renewed: {asyncio.run(_renew_streams(context.obj().settings))}.")


@commands.command("config", epilog="Example: omoi config --json")
def config(
    context: typer.Context, json_: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False
) -> None:
    """Every setting, its value, and where that came from. Secrets are masked."""
    rows = _told(context.obj())
    if json_:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None)
    for column in ("setting", "value", "from", "environment", "what it is"):
        table.add_column(column, no_wrap=column in ("setting", "environment"), overflow="fold")
    for row in rows:
        value = "" if row["value"] is None else str(row["value"])
        table.add_row(row["name"], value, row["source"], row["environment"], row["about"])
    Console().print(table)


async def _migrate(settings: Settings) -> tuple[str | None, str]:
    if not settings.database_url:
        async with database.borrowed(settings, holder="omoi migrate"):
            return upgrade.head(), upgrade.head()
    url = database.external(settings.database_url)
    db = Database(url, connections=1)
    try:
        await database.reachable(db, url)
        before = await upgrade.require_known(db)
        if before != upgrade.head():
            await upgrade.migrate(url)
        await upgrade.require_current(db)
    finally:
        await db.close()
    return before, upgrade.head()


async def _renew_streams(settings: Settings) -> int:
    async with database.borrowed(settings, holder="omoi renew-streams") as db, db.writing() as session:
        return await streams.renew(session)


def _told(loaded: Loaded) -> list[dict[str, Any]]:
    rows = []
    for knob in fields(Settings):
        value = getattr(loaded.settings, knob.name)
        if knob.metadata["secret"] and value:
            value = "••••"
        elif isinstance(value, Path):
            value = str(value)
        elif isinstance(value, tuple):
            value = list(value)
        rows.append(
            {
                "name": knob.name,
                "value": value,
                "source": loaded.sources[knob.name],
                "environment": knob.metadata["env"],
                "about": knob.metadata["about"],
            }
        )
    return rows


def main() -> None:
    """One sentence for what a person can mend; 1 when the server refused, 2 when the command cannot go on."""
    try:
        commands()
    except CannotStart as error:
        print(f"omoi: {error}", file=sys.stderr)
        sys.exit(CANNOT)
    except AppError as error:
        print(f"omoi: {error.message}", file=sys.stderr)
        sys.exit(CANNOT if isinstance(error, DatabaseUnavailable) else REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)
