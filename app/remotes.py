"""What the address of a repository says: how a sandbox comes to it, and whose rights open it."""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.errors import RepositoryRefused
from app.settings import Settings, origin_of

GITHUB = "https://github.com"
REPOSITORIES = "repositories"
DISTANT_PORTS = {"ssh": 22, "git": 9418}
WEB = re.compile(r"https?://\S+")
_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)"
_HOST = r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])"
URL = re.compile(rf"(?P<scheme>ssh|git)://{_USER}?{_HOST}(?::(?P<port>[0-9]{{1,5}}))?/(?!-)\S+")
SCP = re.compile(rf"{_USER}{_HOST}:(?!-)\S+")


@dataclass(frozen=True, slots=True)
class Web:
    """A sandbox clones it by itself, through its own door."""

    host: str
    origin: str | None  # None where no credential could be the right one


@dataclass(frozen=True, slots=True)
class Local:
    """A folder of this server."""

    path: Path


@dataclass(frozen=True, slots=True)
class Distant:
    """By ssh:// or git://, which no sandbox can speak: the server keeps a mirror of it."""

    address: str
    host: str
    port: int
    is_usual_port: bool


def parse(address: str) -> Web | Local | Distant | None:
    """None: `git clone` takes no such address, or it would take it for an option or a command."""
    if WEB.fullmatch(address):
        return _web(address)
    if address.startswith("file:///"):
        return Local(Path(unquote(address.removeprefix("file://"))))
    if address.startswith("/"):
        return Local(Path(address))
    if match := URL.fullmatch(address):
        usual = DISTANT_PORTS[match["scheme"]]
        port = int(match["port"] or usual)
        return Distant(address, match["host"].lower(), port, port == usual)
    if match := SCP.fullmatch(address):
        return Distant(address, match["host"].lower(), DISTANT_PORTS["ssh"], is_usual_port=True)
    return None


def require_served(settings: Settings, remote: Local | Distant) -> None:
    """RepositoryRefused: the operator allows no sandbox to be handed this."""
    if isinstance(remote, Local):
        folder(settings, remote.path)
        return
    names = {f"{remote.host}:{remote.port}", *([remote.host] if remote.is_usual_port else [])}
    if names.isdisjoint(settings.git_hosts):
        port = "" if remote.is_usual_port else f":{remote.port}"
        raise RepositoryRefused(
            f"The server opens no repositories on {remote.host}{port}; OMOI_GIT_HOSTS lists the hosts for ssh and "
            "git addresses. An https address needs no such entry."
        )


def folder(settings: Settings, path: Path) -> Path:
    """The git folder of a repository on this machine, links followed; refused outside of what is allowed."""
    found = path.resolve()
    found = (found / ".git").resolve() if (found / ".git").exists() else found
    if not any(found.is_relative_to(allowed) for allowed in folders(settings)):
        raise RepositoryRefused(
            f"The repository {path} is in no folder that projects may use; OMOI_REPOSITORY_FOLDERS lists these."
        )
    if found.is_file():
        raise RepositoryRefused(f"{path} is a file, and no branch can be pushed to it; clone it to a folder first.")
    if not (found / "HEAD").is_file():
        raise RepositoryRefused(f"There is no git repository at {path} on the server.")
    return found


def folders(settings: Settings) -> Sequence[Path]:
    """Where repositories on this machine may lie, links followed."""
    return [one.resolve() for one in settings.repository_folders or (settings.data / REPOSITORIES,)]


def needs_admin(settings: Settings, remote: Web | Local | Distant) -> str | None:
    """Why only an admin may name it: what the server's own rights or its place in the network open is not everybody's.

    GitHub is everybody's, because there the server's own credential is kept for what an admin has named.
    """
    if isinstance(remote, Local):
        return "it lies on the server"
    if isinstance(remote, Distant):
        return "the server opens it with its own rights"
    if remote.origin != GITHUB and remote.origin in {known.origin for known in settings.git_credentials}:
        return "the server holds the credential for it"
    if _is_private(remote.host):
        return "its address is in the server's own network"
    return None


def _web(address: str) -> Web | None:
    try:
        parts = urlsplit(address)
        if not parts.hostname or parts.port == 0:
            return None
    except ValueError:
        return None
    try:
        return Web(parts.hostname, origin_of(f"{parts.scheme}://{parts.netloc}"))
    except ValueError:
        return Web(parts.hostname, None)


def _is_private(host: str) -> bool:
    """As far as the name itself tells; where a name leads is looked at by the door of each box."""
    name = host.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip = ipaddress.ip_address(name)
    except ValueError:
        try:
            ip = ipaddress.IPv4Address(socket.inet_aton(name))  # 127.1 and 2130706433 are addresses too
        except OSError:
            return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return not ip.is_global
