"""Settings: who wins, what is refused, and that no refusal tells a secret."""

from dataclasses import fields
from pathlib import Path

import pytest

from app import settings
from app.errors import CannotStart
from app.settings import GitCredential, Settings, load, origin_of


@pytest.fixture
def file(tmp_path):
    """A configuration file, by what it says."""

    def write(text):
        path = tmp_path / "omoi.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_parameters_beat_environment_beats_file_beats_default(file):
    """Each place wins over the next, and each value knows where it came from."""
    path = file("host: file\nport: 3\ndrain_seconds: 3\n")
    loaded = load({"host": "parameter"}, env={"HOST": "environment", "PORT": "2"}, file=path)
    found = {name: (getattr(loaded.settings, name), loaded.sources[name]) for name in ("host", "port", "drain_seconds")}
    assert found == {
        "host": ("parameter", "parameter"),
        "port": (2, "environment PORT"),
        "drain_seconds": (3.0, f"file {path}"),
    }
    assert (loaded.settings.frame_bytes, loaded.sources["frame_bytes"]) == (Settings().frame_bytes, "default")


def test_file_is_named_by_the_environment(file):
    """OMOI_CONFIG names the file where --config does not."""
    assert load(env={"OMOI_CONFIG": str(file("port: 5"))}).settings.port == 5


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "port:\n"])
def test_file_that_says_nothing(file, text):
    """An empty file, or an empty key, leaves the defaults."""
    assert load(env={}, file=file(text)).settings == Settings()


def test_empty_variable_says_nothing():
    """`PORT=` in a shell is no port."""
    assert load(env={"PORT": "", "DATABASE_URL": ""}).settings == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("PORT", "0", 0),
        ("PORT", "65535", 65535),
        ("OMOI_DRAIN_SECONDS", "0.5", 0.5),
        ("OMOI_PRODUCTION", "Yes", True),
        ("ORCHESTRATOR_ENABLED", "false", False),
        ("OMOI_DATA", "~/omoi", Path.home() / "omoi"),
        ("OMOI_PUBLIC_URL", "HTTPS://Omoi.Example.com:443/", "https://omoi.example.com"),
        (
            "OMOI_ALLOWED_ORIGINS",
            "https://a.example, http://B.example:8080/,",
            ("https://a.example", "http://b.example:8080"),
        ),
        ("ANTHROPIC_BASE_URL", "https://Gate.example/anthropic/", "https://gate.example/anthropic"),
        ("OMOI_GIT_HOSTS", "Git.example, git.example:2222", ("git.example", "git.example:2222")),
        (
            "OMOI_GIT_CREDENTIALS",
            "https://Git.example=omoi:pass=w:ord, http://git.example:3000=a:b",
            (
                GitCredential("https://git.example", "omoi", "pass=w:ord"),
                GitCredential("http://git.example:3000", "a", "b"),
            ),
        ),
    ],
)
def test_text_becomes_a_value(variable, text, value):
    """What the environment says as text has its own type afterwards."""
    [name] = [knob.name for knob in fields(Settings) if knob.metadata["env"] == variable]
    assert getattr(load(env={variable: text}).settings, name) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *(("PORT", text) for text in ("-1", "65536", "abc", "1.5", "9" * 5000)),
        *(("OMOI_BODY_BYTES", text) for text in ("0", "-1", "1MiB")),
        *(("OMOI_DRAIN_SECONDS", text) for text in ("0", "-1", "nan", "inf", "soon")),
        *(("OMOI_PRODUCTION", text) for text in ("maybe", "2")),
        *(
            ("OMOI_PUBLIC_URL", text)
            for text in ("omoi.example.com", "https://", "ftp://x", "https://x/path", "http://x:y")
        ),
        *(("ANTHROPIC_BASE_URL", text) for text in ("api.example", "https://x?y", "https://user@x", "ftp://x")),
        *(
            ("OMOI_GIT_CREDENTIALS", text)
            for text in ("https://x", "https://x=user", "https://x=:word", "x=user:word", "https://x/y=user:word")
        ),
        *(("OMOI_ALLOWED_ORIGINS", text) for text in ("*", "https://*.example.com", "null", "https://user@x", "x")),
    ],
)
def test_value_of_the_wrong_kind_is_refused(variable, text):
    """One sentence says which setting, from where, and what it has to be."""
    with pytest.raises(CannotStart) as refused:
        load(env={variable: text})
    assert f"(environment {variable}) must be" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "port: [1]",
        "port: true",
        "port: 1.5",
        "host: 5",
        "host: [a]",
        "host: {a: b}",
        "data: 5",
        "drain_seconds: [1]",
        "production: 3",
        "allowed_origins: 5",
        "allowed_origins: [1]",
        "database_url: {secret: secret}",
        "git_credentials: secret",
        "git_credentials: [{secret: secret}]",
    ],
)
def test_file_of_the_wrong_kind_is_refused(file, text):
    """YAML has types of its own; the wrong one is refused by the setting's name."""
    with pytest.raises(CannotStart, match=rf"The setting {text.partition(':')[0]} \(file .*\) must be") as refused:
        load(env={}, file=file(text))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prot: 1\nhots: a", "keys nobody knows: hots, prot"),
        ("- port", "must hold lines like"),
        ("just words", "must hold lines like"),
        ("database_url: 'secret\nport: 1", "is no YAML: .* in line"),
        ("database_url: secret\n\tport: 1", "is no YAML: .* in line 2"),
        ("port: !!python/object:os.system [secret]", "is no YAML"),
        (b"\xff\xfe\x00secret", "is no text in UTF-8"),
        ("port: \x00secret", "is no text in UTF-8"),
    ],
)
def test_broken_file_is_refused(file, text, why):
    """A file that cannot be understood is named with what is wrong in it; none of its lines is quoted."""
    path = file(text)
    with pytest.raises(CannotStart, match=why) as refused:
        load(env={}, file=path)
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_file_is_refused(tmp_path):
    """A file that was named has to be there."""
    with pytest.raises(CannotStart, match=r"cannot be read: No such file or directory"):
        load(env={}, file=tmp_path / "none.yaml")
    with pytest.raises(CannotStart, match=r"cannot be read: Is a directory"):
        load(env={}, file=tmp_path)


def test_every_knob_is_explained():
    """Each setting has a variable of its own and a sentence; where passwords are, it is a secret."""
    variables = [knob.metadata["env"] for knob in fields(Settings)]
    assert len(set(variables)) == len(variables)
    assert all(knob.metadata["about"].endswith(".") for knob in fields(Settings))
    assert {knob.name for knob in fields(Settings) if knob.metadata["secret"]} == {
        "database_url",
        "redis_url",
        "root_key",
        "anthropic_api_key",
        "anthropic_auth_token",
        "git_credentials",
    }


def test_settings_show_no_secret():
    """Not even where somebody prints them all."""
    env = {"OMOI_ROOT_KEY": "secret", "ANTHROPIC_API_KEY": "secret", "OMOI_GIT_CREDENTIALS": "https://x=user:secret"}
    assert "secret" not in repr(load(env=env).settings)


def test_entries_of_a_list_are_taken_whole(file):
    """In the file a password may have commas and spaces."""
    path = file('git_credentials: ["https://git.example=omoi:one, two"]')
    assert load(env={}, file=path).settings.git_credentials[0].password == "one, two"


def test_token_of_the_agents_own_program_counts():
    """Where the agent's program is signed in by its own variable, the server is too; the general one goes first."""
    env = {"CLAUDE_CODE_OAUTH_TOKEN": "its own"}
    loaded = load(env=env)
    assert loaded.settings.anthropic_auth_token == "its own"
    assert loaded.sources["anthropic_auth_token"] == "environment CLAUDE_CODE_OAUTH_TOKEN"
    assert load(env={**env, "ANTHROPIC_AUTH_TOKEN": "general"}).settings.anthropic_auth_token == "general"


def test_every_type_can_be_read():
    """No setting can be added whose type nobody knows how to read."""
    for knob in fields(Settings):
        with pytest.raises(CannotStart):
            load({knob.name: object()}, env={})


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("http://127.0.0.1:18000", "http://127.0.0.1:18000"),
        ("http://[::1]:18000/", "http://[::1]:18000"),
        ("http://example.com:80", "http://example.com"),
        ("https://example.com:80", "https://example.com:80"),
    ],
)
def test_origin_as_browsers_say_it(address, origin):
    """Lower case, without a default port or a path."""
    assert origin_of(address) == origin


def test_settings_stay_as_they_are():
    """Nobody changes them behind the others' back."""
    with pytest.raises(AttributeError):
        settings.Settings().port = 1
