"""The tables: migrations lay what the models say, and one module alone writes a status."""

import ast
import re
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from app.db import Database
from app.models import Base

ROOT = Path(__file__).parents[2]
MODELS = {"Ticket", "Task"}
RAW = re.compile(r"(UPDATE|INSERT INTO|DELETE FROM)\s+(tickets|tasks)\b", re.IGNORECASE)


async def test_migrations_lay_what_the_models_say(database_url):
    """Alembic finds nothing to do in a migrated database."""
    db = Database(database_url, connections=1)
    async with db.engine.connect() as connection:
        found = await connection.run_sync(
            lambda sync: compare_metadata(
                MigrationContext.configure(sync, opts={"compare_server_default": True}), Base.metadata
            )
        )
    await db.close()

    assert found == []


async def test_the_words_of_a_ticket_are_parted_as_the_model_says(database_url):
    """A comparison of tables overlooks how a computed column is computed."""
    [column] = [one for one in Base.metadata.tables["tickets"].columns if one.computed is not None]
    computed = f"s tsvector GENERATED ALWAYS AS ({column.computed.sqltext}) STORED"
    wanted = f"CREATE TEMP TABLE t (title text, description text, {computed})"
    shown = """SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef
               JOIN pg_attribute a ON a.attrelid = adrelid AND a.attnum = adnum"""
    db = Database(database_url, connections=1)
    async with db.engine.connect() as connection:
        await connection.exec_driver_sql(wanted)
        laid = await connection.scalar(text(f"{shown} WHERE adrelid = 'tickets'::regclass AND attname = 'search'"))
        modelled = await connection.scalar(text(f"{shown} WHERE adrelid = 't'::regclass AND attname = 's'"))
    await db.close()

    assert laid == modelled


def test_one_module_alone_writes_a_status():
    """Whoever makes or changes a row of tickets or tasks stands in app/tickets.py or app/tasks.py."""
    written = {
        (model, str(file.relative_to(ROOT)))
        for folder in ("app", "resolvers", "orchestrator")
        for file in (ROOT / folder).rglob("*.py")
        for model in _written(ast.parse(file.read_text()))
    }

    assert written == {("Ticket", "app/tickets.py"), ("Task", "app/tasks.py")}


def _written(tree):
    """The models that are built, named in a writing statement, or assigned a status where rows are known."""
    knows_rows = any(isinstance(node, ast.ImportFrom) and node.module == "app.models" for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name in MODELS:
                yield name
            if name in ("update", "insert", "delete", "merge"):
                yield from {_last_name(one) for one in node.args} & MODELS
        if knows_rows and _is_set(node, "status"):
            yield "assigned"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and RAW.search(node.value):
            yield "raw SQL"


def _is_set(node, name):
    """Of another object: what an error or an answer calls its own status is no row's."""
    named = isinstance(node, ast.Attribute) and (node.attr, type(node.ctx)) == (name, ast.Store)
    return named and _last_name(node.value) != "self"


def _last_name(node):
    return getattr(node, "attr", None) or getattr(node, "id", None)
