"""Every knob, read once: parameters beat the environment, which beats the YAML file, which beats the defaults."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import platformdirs
import yaml

from app.errors import CannotStart

SOURCE_DEFAULT = "default"


def knob(default: Any, env: str, about: str, *, secret: bool = False) -> Any:
    """A setting with the environment variable that sets it. In the YAML file its key is the field's name."""
    metadata = {"env": env, "about": about, "secret": secret}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_data_folder() -> Path:
    return Path(platformdirs.user_data_dir("omoios", appauthor=False))


@dataclass(frozen=True, kw_only=True)
class Settings:
    data: Path = knob(
        default_data_folder, "OMOI_DATA", "Folder of the embedded database and of the server's own files."
    )
    database_url: str | None = knob(None, "DATABASE_URL", "A Postgres to use instead of the embedded one.", secret=True)
    redis_url: str | None = knob(None, "REDIS_URL", "Redis pub/sub between replicas instead of memory.", secret=True)
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
    socket_operations: int = knob(50, "OMOI_SOCKET_OPERATIONS", "Operations at once on one socket.")
    socket_init_seconds: float = knob(10.0, "OMOI_SOCKET_INIT_SECONDS", "Time for connection_init.")
    documents: Path | None = knob(None, "OMOI_DOCUMENTS", "Manifest of trusted documents: JSON, sha256 to text.")
    previous_documents: Path | None = knob(None, "OMOI_PREVIOUS_DOCUMENTS", "The last release's manifest.")
    trusted_documents_only: bool = knob(False, "OMOI_TRUSTED_DOCUMENTS_ONLY", "Refuse every other document from users.")


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
            (f"environment {variable}", env.get(variable) or None),
            (f"file {file}", from_file.get(name)),
        ):
            if raw is not None:
                chosen[name], sources[name] = _convert(raw, hints[name], f"{name} ({source})"), source
                break
    return Loaded(Settings(**chosen), sources)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CannotStart(f"The configuration file {file} cannot be read: {error}") from error
    if content is None:
        return {}
    known = {knob_.name for knob_ in fields(Settings)}
    if not isinstance(content, dict) or (unknown := set(content) - known):
        wrong = ", ".join(sorted(map(str, unknown))) if isinstance(content, dict) else "not a mapping"
        raise CannotStart(f"The configuration file {file} has keys nobody knows: {wrong}. `omoi config` lists all.")
    return content


def _convert(raw: Any, kind: Any, name: str) -> Any:
    try:
        return _CONVERSIONS[kind](raw)
    except (ValueError, TypeError, KeyError) as error:
        raise CannotStart(f"The setting {name} cannot be {raw!r}.") from error


def _truth(raw: Any) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        str(raw).lower()
    ]


def _number(raw: Any) -> int:
    number = int(raw)
    if number < 0:
        raise ValueError(raw)
    return number


def _duration(raw: Any) -> float:
    seconds = float(raw)
    if not 0 < seconds < float("inf"):
        raise ValueError(raw)
    return seconds


def _names(raw: Any) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else list(raw)
    return tuple(part.strip() for part in parts if part.strip())


_CONVERSIONS: dict[Any, Any] = {
    str: str,
    str | None: str,
    int: _number,
    float: _duration,
    bool: _truth,
    Path: lambda raw: Path(raw).expanduser(),
    Path | None: lambda raw: Path(raw).expanduser(),
    tuple[str, ...]: _names,
}
