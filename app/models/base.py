"""What all tables share: how an enum, an id and a moment are stored."""

import enum
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import DateTime, Enum, LargeBinary, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app import clock, ids


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        bytes: LargeBinary,
    }


def stored(kind: type[enum.Enum], *, checked: str | None = None) -> Enum:
    """As text with a CHECK, by value: an enum type in Postgres cannot lose a value again."""
    return Enum(
        kind,
        name=checked or kind.__name__.lower(),
        native_enum=False,
        length=32,
        create_constraint=True,
        values_callable=lambda k: [m.value for m in k],
    )


def new_id() -> Mapped[UUID]:
    return mapped_column(primary_key=True, default=ids.new)


def moment() -> Mapped[datetime]:
    return mapped_column(server_default=clock.now())
