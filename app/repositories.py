"""What people may say of a project's repository, and who may say it, before it is stored."""

import re
from collections.abc import Mapping
from typing import Any

from app import remotes
from app.auth import Principal
from app.enums import RepositoryHost
from app.errors import RepositoryRefused
from app.inputs import Checks
from app.models import Project
from app.settings import Settings

URL_CHARS = 2_000
GITHUB_OWNER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98})")
GITHUB_NAME = re.compile(r"(?!\.{1,2}$|.*\.git$)[A-Za-z0-9._-]{1,100}")
BRANCH_NAME = re.compile(
    r"(?!-|/|@$|HEAD$|.*(?:\.\.|//|@\{|\.$)|(?:.*/)?(?:\.|$)|.*\.lock(?:/|$))[^\x00-\x20~^:?*\[\\\x7f]{1,200}"
)
URL_PASSWORD = re.compile(r"https?://[^?#]*@|https?://[^#]*\?|\w+://[^/]*:[^/]*@")
PLACE = ("repository", "cloneUrl")

Given = Mapping[str, str | None]
Columns = dict[str, Any]


def none() -> Columns:
    """Of a project that has no repository."""
    return _columns(None, None, "main")


def checked(
    checks: Checks, given: Given, *, settings: Settings, principal: Principal, now: Project | None = None
) -> Columns:
    """Either owner and name, which is GitHub, or any address that `git clone` takes; never with a password in it.

    What an admin names is vouched for. It stays so while others change the project, until they name another one.
    """
    owner, name, url = given.get("owner"), given.get("name"), given.get("clone_url")
    branch = (given.get("default_branch") or "main").strip()
    if not BRANCH_NAME.fullmatch(branch):
        checks.refuse("defaultBranch is no branch name that git takes.", ["repository", "defaultBranch"])
    if url and not owner and not name:
        url = checks.line(url, *PLACE, chars=URL_CHARS)
        if _is_address(checks, url) and (principal.admin or now is None or now.clone_url != url):
            _admit(checks, url, settings, principal)
        columns = _columns(RepositoryHost.GIT, url, branch)
    elif url or not owner or not name:
        checks.refuse("Give either owner and name (GitHub) or cloneUrl.", ["repository"])
        return {}
    else:
        columns = _on_github(checks, owner, name, branch)
    stays = now is not None and now.repository_vouched and now.clone_url == columns["clone_url"]
    return {**columns, "repository_vouched": principal.admin or stays}


def _is_address(checks: Checks, url: str) -> bool:
    if any(refusal.path == [*PLACE] for refusal in checks.refusals):
        return False
    if URL_PASSWORD.match(url):
        checks.refuse("cloneUrl must not carry a user, a password or a query; set a credential instead.", PLACE)
        return False
    if remotes.parse(url) is None:
        checks.refuse("cloneUrl is no address that `git clone` takes.", PLACE)
        return False
    return True


def _admit(checks: Checks, url: str, settings: Settings, principal: Principal) -> None:
    """Who may not name it learns nothing about it, not even whether it is there."""
    remote = remotes.parse(url)
    assert remote is not None
    if not principal.admin and (reason := remotes.needs_admin(settings, remote)):
        checks.refuse(
            f"Only an admin may link this repository: {reason}. Ask one to link it, or name one on the web that your "
            "own credential opens.",
            PLACE,
        )
    elif not isinstance(remote, remotes.Web):
        try:
            remotes.require_served(settings, remote)
        except RepositoryRefused as refusal:
            checks.refuse(refusal.message, PLACE)


def _on_github(checks: Checks, owner: str, name: str, branch: str) -> Columns:
    for field_name, value, pattern in (("owner", owner, GITHUB_OWNER), ("name", name, GITHUB_NAME)):
        if not pattern.fullmatch(value):
            checks.refuse(f"{field_name} is no name that GitHub has.", ["repository", field_name])
    url = f"{remotes.GITHUB}/{owner}/{name}.git"
    return {**_columns(RepositoryHost.GITHUB, url, branch), "repository_owner": owner, "repository_name": name}


def _columns(host: RepositoryHost | None, url: str | None, branch: str) -> Columns:
    return {
        "repository_host": host,
        "repository_owner": None,
        "repository_name": None,
        "repository_vouched": False,
        "clone_url": url,
        "default_branch": branch,
    }
