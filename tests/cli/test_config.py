"""`omoi config`: what is set, from where, and no secret."""

import json

import pytest

from app.cli import commands
from tests.cli.conftest import refused


def rows_of(done):
    assert (done.code, done.err) == (0, "")
    return {row["name"]: row for row in json.loads(done.out)}


def test_every_value_and_its_source(command, tmp_path):
    """Parameters, environment, file and defaults, each named; secrets are masked, and told to be set."""
    file = tmp_path / "omoi.yaml"
    file.write_text("host: 0.0.0.0\nredis_url: redis://:canary@host\n")
    environment = {"DATABASE_URL": "postgresql://ada:canary@host/db", "OMOI_ALLOWED_ORIGINS": "https://a.example"}
    done = command("--data", tmp_path, "--config", file, "config", "--json", **environment)
    rows = rows_of(done)
    assert {name: (rows[name]["value"], rows[name]["source"]) for name in ("data", "host", "port")} == {
        "data": (str(tmp_path), "parameter"),
        "host": ("0.0.0.0", f"file {file}"),
        "port": (18000, "default"),
    }
    assert rows["allowed_origins"]["value"] == ["https://a.example"]
    assert rows["database_url"]["value"] == rows["redis_url"]["value"] == "••••"
    assert rows["database_url"]["source"] == "environment DATABASE_URL"
    assert "canary" not in done.out


def test_table_for_people(command):
    """The same for the eye, and still no secret."""
    done = command("config", REDIS_URL="redis://:canary@host", PORT=1234)
    assert done.code == 0
    assert "1234" in done.out
    assert "environment PORT" in done.out
    assert "canary" not in done.out


@pytest.mark.parametrize("variable", ["PORT", "OMOI_PRODUCTION", "OMOI_PUBLIC_URL"])
def test_wrong_type(command, variable):
    """A value that cannot be read is a sentence, not a traceback."""
    assert f"(environment {variable}) must be" in refused(command("config", **{variable: "?"}), 2)


def test_parameter_is_not_asked_for_the_environments_faults(command):
    """What a parameter sets, the environment cannot get wrong."""
    message = refused(command("up", "--port", "70000", PORT="wrong"), 2)
    assert message == "The setting port (parameter) must be a port from 0 to 65535, not 70000."


@pytest.mark.parametrize("text", ["port: 'x", "prot: 1", "port: [1]", "\x00"])
def test_broken_file(command, tmp_path, text):
    """A file that cannot be used is named."""
    file = tmp_path / "omoi.yaml"
    file.write_text(text)
    for done in (command("--config", file, "config"), command("config", OMOI_CONFIG=file)):
        assert str(file) in refused(done, 2)


COMMANDS = [
    [],
    ["up"],
    ["demo"],
    ["tour"],
    ["migrate"],
    ["renew-streams"],
    ["config"],
    *(["user", one] for one in ("create", "list", "link")),
    *(["token", one] for one in ("create", "list", "revoke")),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example(command, words):
    """`--help` shows how each command is used, whatever is wrong with the settings."""
    done = command(*words, "--help", PORT="wrong")
    assert (done.code, done.err) == (0, "")
    [example] = [line for line in done.out.splitlines() if "Example:" in line]
    assert " ".join(["omoi", *words]) in example


def test_every_command_is_in_that_list():
    """No command can be added without its example being looked for."""
    known = {command.name for command in commands.registered_commands}
    for group in commands.registered_groups:
        known |= {f"{group.name} {command.name}" for command in group.typer_instance.registered_commands}
    assert known == {" ".join(words) for words in COMMANDS if words}
