"""`omoi demo` and `omoi tour`: a server, or any server, finishes a ticket while one looks on."""

import os
import subprocess
from pathlib import Path

from rich.console import Console

from app import auth, remotes, tokens, transactions
from app.cli import database, up
from app.cli.client import Client
from app.cli.tour import Tour
from app.errors import CannotStart
from app.main import Server
from app.settings import Settings

NAME = "demo.git"
README = b"# Demo\n\nAgents of OmoiOS work on branches of this repository.\n"
AUTHOR = {
    "GIT_AUTHOR_NAME": "OmoiOS",
    "GIT_AUTHOR_EMAIL": "demo@omoios.invalid",
    "GIT_COMMITTER_NAME": "OmoiOS",
    "GIT_COMMITTER_EMAIL": "demo@omoios.invalid",
}


def run(settings: Settings, console: Console) -> None:
    """Start a server, take the tour on it, and stop it. A step that did not happen is raised."""
    place = repository(settings)

    async def tour(server: Server) -> None:
        admin, _ = await up.require_admin(server.db)
        async with transactions.begin(server.db, None, auth.SYSTEM, request_id="demo") as tx:
            token, secret = await tokens.create(tx, admin, name="demo")
        try:
            await _take(server.services.address, secret, console, str(place))
        finally:
            async with transactions.begin(server.db, None, auth.SYSTEM, request_id="demo") as tx:
                await tokens.revoke(tx, token.id, of_user=None)
        console.print("\nTo go on: `make up`, or `omoi up`. Then it is all there to look at:", markup=False)
        console.print(f"Pages:        {server.services.address}/graphiql", markup=False, soft_wrap=True)
        console.print(f"The branches: git --git-dir {place} branch", markup=False, soft_wrap=True)

    up.run(settings, console, visit=tour)


async def visit(
    settings: Settings, console: Console, *, url: str | None, token: str | None, repository: str | None
) -> None:
    """The tour on a server that runs already."""
    address = url or database.address_of_server(settings)
    if address is None:
        raise CannotStart("No server runs here. Start one with `omoi up`, or name one with --url.")
    if token is None:
        raise CannotStart("A token is needed: `omoi token create --name tour` makes one; give it as OMOI_TOKEN.")
    await _take(address, token, console, repository)


async def _take(address: str, token: str, console: Console, place: str | None) -> None:
    client = Client(address, token)
    try:
        await Tour(client, console, repository=place).run()
    finally:
        await client.close()


def repository(settings: Settings) -> Path:
    """The bare repository with its first commit, made the first time."""
    folder = remotes.folders(settings)[0] / NAME
    if (folder / "HEAD").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet", "--bare", "--initial-branch=main", ".")
    blob = _git(folder, "hash-object", "-w", "--stdin", given=README)
    tree = _git(folder, "mktree", given=f"100644 blob {blob}\tREADME.md\n".encode())
    commit = _git(folder, "commit-tree", tree, "-m", "Begin")
    _git(folder, "update-ref", "refs/heads/main", commit)
    return folder


def _git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    env = {"PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **AUTHOR}
    try:
        done = subprocess.run(  # noqa: S603 - our own words only
            ["git", *arguments],  # noqa: S607 - wherever this machine has it
            cwd=folder,
            input=given,
            env=env,
            capture_output=True,
            check=True,
        )
    except FileNotFoundError as error:
        raise CannotStart("git is not installed; the demo, and every agent, needs it.") from error
    except subprocess.CalledProcessError as error:
        raise CannotStart(f"The demo's repository could not be made: {error.stderr.decode().strip()}") from error
    return done.stdout.decode().strip()
