"""Every knob, read once: parameters beat the environment, which beats the YAML file, which beats the defaults."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import urlsplit

import platformdirs
import yaml

from app.errors import CannotStart

SOURCE_DEFAULT = "default"
DEFAULT_PORTS = {"http": 80, "https": 443}
LAST_PORT = 65_535


def knob(default: Any, env: str, about: str, *, also: str | None = None, secret: bool = False) -> Any:
    """A setting with the environment variable that sets it. In the YAML file its key is the field's name."""
    metadata = {"env": env, "also": also, "about": about, "secret": secret}
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def default_data_folder() -> Path:
    return Path(platformdirs.user_data_dir("omoios", appauthor=False))


class GitCredential(NamedTuple):
    """What opens the repositories of one origin."""

    origin: str
    username: str
    password: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    data: Path = knob(
        default_data_folder, "OMOI_DATA", "Folder of the embedded database and of the server's own files."
    )
    database_url: str | None = knob(None, "DATABASE_URL", "A Postgres to use instead of the embedded one.", secret=True)
    redis_url: str | None = knob(None, "REDIS_URL", "Redis pub/sub between replicas instead of memory.", secret=True)
    root_key: str | None = knob(
        None, "OMOI_ROOT_KEY", "32 bytes in base64 or hex instead of the data folder's root.key.", secret=True
    )
    anthropic_api_key: str | None = knob(
        None, "ANTHROPIC_API_KEY", "Key for the model, for users without one of their own.", secret=True
    )
    anthropic_auth_token: str | None = knob(
        None,
        "ANTHROPIC_AUTH_TOKEN",
        "OAuth token for the model, instead of a key.",
        also="CLAUDE_CODE_OAUTH_TOKEN",
        secret=True,
    )
    anthropic_base_url: str = knob("https://api.anthropic.com", "ANTHROPIC_BASE_URL", "Where the model answers.")
    git_credentials: tuple[GitCredential, ...] = knob(
        (), "OMOI_GIT_CREDENTIALS", "What opens repositories: https://host=user:password, with commas.", secret=True
    )
    repository_folders: tuple[Path, ...] = knob(
        (), "OMOI_REPOSITORY_FOLDERS", "Folders whose repositories projects may name; else `repositories` in the data."
    )
    git_hosts: tuple[str, ...] = knob(
        (), "OMOI_GIT_HOSTS", "Hosts whose repositories this server opens by ssh and git addresses, with commas."
    )
    model: str | None = knob(None, "ANTHROPIC_MODEL", "Model of projects that name none.")
    registries: tuple[str, ...] = knob(
        (), "OMOI_REGISTRIES", "Hosts of package registries that sandboxes may reach, with commas."
    )
    local_sandboxes: int = knob(8, "OMOI_LOCAL_SANDBOXES", "Sandboxes at once on this machine.")
    allow_unisolated: bool = knob(
        False, "OMOI_ALLOW_UNISOLATED", "Let a real model work where sandboxes cannot be isolated from this machine."
    )
    task_seconds: float = knob(4 * 3600.0, "OMOI_TASK_SECONDS", "Time that one try at a task gets.")
    silence_seconds: float = knob(1500.0, "OMOI_SILENCE_SECONDS", "How long nothing may happen in a sandbox.")
    host: str = knob("127.0.0.1", "HOST", "Address to listen on.")
    port: int = knob(18000, "PORT", "Port to listen on; 0 takes a free one.")
    public_url: str | None = knob(None, "OMOI_PUBLIC_URL", "Address under which browsers reach the server.")
    allowed_origins: tuple[str, ...] = knob(
        (), "OMOI_ALLOWED_ORIGINS", "Further web origins whose pages may call, with commas."
    )
    production: bool = knob(False, "OMOI_PRODUCTION", "JSON logs, no GraphiQL.")
    access_log: bool = knob(False, "OMOI_ACCESS_LOG", "One log line for each request.")
    orchestrator_enabled: bool = knob(True, "ORCHESTRATOR_ENABLED", "Off makes a replica that only answers.")

    database_connections: int = knob(
        20, "OMOI_DATABASE_CONNECTIONS", "Connections to Postgres at most, for one process."
    )
    stream_poll_seconds: float = knob(5.0, "OMOI_STREAM_POLL_SECONDS", "How often a silent stream is read again.")
    stream_window_seconds: float = knob(
        0.02, "OMOI_STREAM_WINDOW_SECONDS", "What happens within it reaches subscribers in one payload."
    )
    mailbox_answers: int = knob(256, "OMOI_MAILBOX_ANSWERS", "How many payloads a subscriber may be behind.")
    mailbox_bytes: int = knob(1 << 20, "OMOI_MAILBOX_BYTES", "And how many bytes.")
    sandbox_events_per_second: int = knob(
        2_000, "OMOI_SANDBOX_EVENTS_PER_SECOND", "Events that one sandbox may report each second, to one process."
    )
    sandbox_events_burst: int = knob(20_000, "OMOI_SANDBOX_EVENTS_BURST", "And at once, after a silence.")
    sandbox_bytes_per_second: int = knob(4 << 20, "OMOI_SANDBOX_BYTES_PER_SECOND", "The same for their bytes.")
    sandbox_bytes_burst: int = knob(32 << 20, "OMOI_SANDBOX_BYTES_BURST", "And at once, after a silence.")
    sandbox_stream_bytes: int = knob(
        1 << 30, "OMOI_SANDBOX_STREAM_BYTES", "Bytes of events that are kept of one sandbox; the rest is left out."
    )
    drain_seconds: float = knob(8.0, "OMOI_DRAIN_SECONDS", "Time that running requests get at the end.")

    body_bytes: int = knob(1 << 20, "OMOI_BODY_BYTES", "Largest request body.")
    frame_bytes: int = knob(256 << 10, "OMOI_FRAME_BYTES", "Largest WebSocket frame from a client.")
    document_bytes: int = knob(64 << 10, "OMOI_DOCUMENT_BYTES", "Largest GraphQL document.")
    document_tokens: int = knob(2_000, "OMOI_DOCUMENT_TOKENS", "Tokens in a document.")
    document_depth: int = knob(12, "OMOI_DOCUMENT_DEPTH", "Levels of fields in a document.")
    document_aliases: int = knob(
        30, "OMOI_DOCUMENT_ALIASES", "Aliases in a document, fragments counted where they are used."
    )
    document_root_fields: int = knob(20, "OMOI_DOCUMENT_ROOT_FIELDS", "Root fields of an operation.")
    document_cost: int = knob(10_000, "OMOI_DOCUMENT_COST", "Static cost of an operation: objects it may return.")
    query_seconds: float = knob(10.0, "OMOI_QUERY_SECONDS", "Time limit of a query or mutation.")
    connections: int = knob(5_000, "OMOI_CONNECTIONS", "Sockets and event streams at once, for one process.")
    account_connections: int = knob(1_000, "OMOI_ACCOUNT_CONNECTIONS", "Of these, for one account.")
    socket_operations: int = knob(50, "OMOI_SOCKET_OPERATIONS", "Operations at once on one socket.")
    socket_init_seconds: float = knob(10.0, "OMOI_SOCKET_INIT_SECONDS", "Time for connection_init.")
    documents: Path | None = knob(None, "OMOI_DOCUMENTS", "Manifest of trusted documents: JSON, sha256 to text.")
    previous_documents: Path | None = knob(None, "OMOI_PREVIOUS_DOCUMENTS", "The last release's manifest.")
    trusted_documents_only: bool = knob(False, "OMOI_TRUSTED_DOCUMENTS_ONLY", "Refuse every other document from users.")

    @property
    def has_model_key(self) -> bool:
        return bool(self.anthropic_api_key or self.anthropic_auth_token)


@dataclass(frozen=True)
class Loaded:
    """The settings and, for each, the place that decided it."""

    settings: Settings
    sources: Mapping[str, str]


def load(
    parameters: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Loaded:
    """Read all places. A value that does not fit its type, or a key nobody knows, is refused by name."""
    chosen: dict[str, Any] = {}
    sources: dict[str, str] = {}
    file = file or (Path(env["OMOI_CONFIG"]) if env.get("OMOI_CONFIG") else None)
    from_file = _read_file(file) if file else {}
    hints = get_type_hints(Settings)
    for knob_ in fields(Settings):
        name, variable = knob_.name, knob_.metadata["env"]
        sources[name] = SOURCE_DEFAULT
        for source, raw in (
            ("parameter", (parameters or {}).get(name)),
            *((f"environment {one}", env.get(one) or None) for one in (variable, knob_.metadata["also"]) if one),
            (f"file {file}", from_file.get(name)),
        ):
            if raw is not None:
                chosen[name], sources[name] = _convert(raw, knob_, hints[name], source), source
                break
    return Loaded(Settings(**chosen), sources)


def _read_file(file: Path) -> dict[str, Any]:
    """What the file says. A refusal quotes none of its lines, which may hold a password."""
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise CannotStart(f"The configuration file {file} cannot be read: {error.strerror}.") from error
    except yaml.MarkedYAMLError as error:
        place = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise CannotStart(f"The configuration file {file} is no YAML: {error.problem}{place}.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise CannotStart(f"The configuration file {file} is no text in UTF-8.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CannotStart(f"The configuration file {file} must hold lines like `port: 18000`.")
    if unknown := set(content) - {knob_.name for knob_ in fields(Settings)}:
        wrong = ", ".join(sorted(map(str, unknown)))
        raise CannotStart(f"The configuration file {file} has keys nobody knows: {wrong}. `omoi config` lists all.")
    return content


def _convert(raw: Any, knob_: Field[Any], kind: Any, source: str) -> Any:
    convert, wanted = _CONVERSIONS.get(knob_.name) or _CONVERSIONS[kind]
    try:
        return convert(raw)
    except (ValueError, TypeError, KeyError) as error:
        found = "what it is" if knob_.metadata["secret"] else repr(raw)
        raise CannotStart(f"The setting {knob_.name} ({source}) must be {wanted}, not {found}.") from error


def origin_of(address: str) -> str:
    """The origin that browsers name for a web address; ValueError for what is none, or more than one."""
    parts = urlsplit(address.strip())
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        raise ValueError(address)
    if parts.path not in ("", "/") or parts.query or parts.fragment or "*" in parts.netloc:
        raise ValueError(address)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port in (None, DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def base_of(address: str) -> str:
    """A web address under which paths are asked for, without a slash at its end; ValueError for what is none."""
    parts = urlsplit(address.strip())
    if parts.query or parts.fragment or "*" in parts.path:
        raise ValueError(address)
    return origin_of(f"{parts.scheme}://{parts.netloc}") + parts.path.rstrip("/")


def _text(raw: Any) -> str:
    if isinstance(raw, str):
        return raw
    raise TypeError(raw)


def _address(raw: Any) -> str:
    return origin_of(_text(raw))


def _base(raw: Any) -> str:
    return base_of(_text(raw))


def _path(raw: Any) -> Path:
    return Path(raw).expanduser()


def _paths(raw: Any) -> tuple[Path, ...]:
    """A list, or text with a comma between two paths."""
    parts = raw.split(",") if isinstance(raw, str) else list(raw)
    return tuple(_path(part.strip() if isinstance(part, str) else part) for part in parts if str(part).strip())


def _truth(raw: Any) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        str(raw).lower()
    ]


def _number(raw: Any) -> int:
    if isinstance(raw, bool | float):
        raise TypeError(raw)
    number = int(raw)
    if number < 1:
        raise ValueError(raw)
    return number


def _port(raw: Any) -> int:
    port = 0 if str(raw) == "0" else _number(raw)
    if port > LAST_PORT:
        raise ValueError(raw)
    return port


def _duration(raw: Any) -> float:
    seconds = float(raw)
    if not 0 < seconds < float("inf"):
        raise ValueError(raw)
    return seconds


def _origins(raw: Any) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else list(raw)
    return tuple(origin_of(part) for part in map(_text, parts) if part.strip())


def _names(raw: Any) -> tuple[str, ...]:
    parts = re.split(r"[,\s]+", raw) if isinstance(raw, str) else list(raw)
    return tuple(part.lower() for part in map(_text, parts) if part)


def _git_credentials(raw: Any) -> tuple[GitCredential, ...]:
    """A list holds each entry whole; in text they have commas or spaces between them."""
    parts = re.split(r"[,\s]+", raw) if isinstance(raw, str) else list(raw)
    return tuple(_git_credential(part) for part in map(_text, parts) if part.strip())


def _git_credential(entry: str) -> GitCredential:
    address, _, account = entry.strip().partition("=")
    username, _, password = account.partition(":")
    if not username or not password:
        raise ValueError("no user and password")
    return GitCredential(origin_of(address), username, password)


# By type, or by name where the type does not say it all: how to read it, and what a refusal asks for.
_CONVERSIONS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    "port": (_port, f"a port from 0 to {LAST_PORT}"),
    "public_url": (_address, "a web address such as https://omoi.example.com"),
    "allowed_origins": (_origins, "web addresses such as https://app.example.com, with commas between them"),
    "anthropic_base_url": (_base, "a web address such as https://api.anthropic.com"),
    "registries": (_names, "host names with commas between them"),
    "git_hosts": (_names, "host names with commas between them"),
    "git_credentials": (_git_credentials, "entries such as https://git.example.com=user:password"),
    tuple[Path, ...]: (_paths, "paths with commas between them"),
    str: (_text, "text"),
    str | None: (_text, "text"),
    int: (_number, "a whole number above 0"),
    float: (_duration, "a number of seconds above 0"),
    bool: (_truth, "true or false"),
    Path: (_path, "a path"),
    Path | None: (_path, "a path"),
}
