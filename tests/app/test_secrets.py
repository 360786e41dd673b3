"""The root key and what is derived from it: where it comes from, and that nothing else opens what it has closed."""

import asyncio
import base64
import os
from uuid import UUID

import pytest

from app.errors import CannotStart
from app.secrets import KEY_BYTES, Keys, Unreadable
from app.settings import Settings

ROOT = bytes(range(KEY_BYTES))
SANDBOX = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.fixture
def keys():
    return Keys(ROOT)


@pytest.fixture
def others():
    """The keys of another root."""
    return Keys(bytes(KEY_BYTES))


@pytest.mark.parametrize(
    "text",
    [
        ROOT.hex(),
        ROOT.hex().upper(),
        base64.b64encode(ROOT).decode(),
        base64.urlsafe_b64encode(ROOT).decode().rstrip("="),
        f" {ROOT.hex()}\n",
    ],
)
def test_root_key_is_given_in_base64_or_hex(tmp_path, keys, text):
    """However it is written it is the same key, and then no file is made."""
    loaded = Keys.load(Settings(data=tmp_path, root_key=text))
    assert loaded.fingerprint == keys.fingerprint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["", "secret", ROOT[:31].hex(), ROOT.hex() + "00", base64.b64encode(ROOT[:31]).decode(), "ä" * 43]
)
def test_bad_root_key_is_refused(tmp_path, text):
    """One sentence says what it must be and how to make one, without quoting it."""
    with pytest.raises(CannotStart, match="OMOI_ROOT_KEY must be 32 bytes") as refused:
        Keys.load(Settings(data=tmp_path, root_key=text))
    assert not text or text not in str(refused.value)


def test_first_start_makes_a_key_that_stays(tmp_path):
    """Readable by its owner alone, and the same at the next start; another folder has another one."""
    settings = Settings(data=tmp_path / "deep" / "data")
    first = Keys.load(settings)
    [file] = settings.data.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("root.key", 0o600)
    assert Keys.load(settings).fingerprint == first.fingerprint
    assert Keys.load(Settings(data=tmp_path)).fingerprint != first.fingerprint


async def test_first_starts_at_once_agree(tmp_path):
    """Of many that make a key at the same moment all use one, and nothing else is left behind."""
    started = await asyncio.gather(*(asyncio.to_thread(Keys.load, Settings(data=tmp_path)) for _ in range(20)))
    assert len({keys.fingerprint for keys in started}) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["root.key"]


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [("", 0o600, "damaged"), ("x" * 44, 0o600, "damaged"), ("ä", 0o600, "damaged"), (ROOT.hex(), 0o640, "chmod 600")],
)
def test_broken_key_file_is_refused(tmp_path, content, mode, why):
    """A file that is no key, or that others may read, is named with what to do, and stays as it is."""
    file = tmp_path / "root.key"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(CannotStart, match=why) as refused:
        Keys.load(Settings(data=tmp_path))
    assert str(file) in str(refused.value)
    assert file.read_text() == content


def test_folder_that_cannot_hold_a_key_is_refused(tmp_path):
    """One sentence instead of a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="OMOI_ROOT_KEY"):
        Keys.load(Settings(data=tmp_path / "file" / "data"))


@pytest.mark.parametrize("attempt", [0, 1, 7, (1 << 32) - 1])
def test_sandbox_token_names_its_attempt(keys, attempt):
    """It is read back by every holder of the root key, and looks like what scanners for secrets know."""
    token = keys.sandbox_token(SANDBOX, attempt)
    assert token.startswith("omoi_sbx_")
    assert Keys(ROOT).sandbox_token(SANDBOX, attempt) == token
    assert Keys(ROOT).read_sandbox_token(token) == (SANDBOX, attempt)


def test_foreign_sandbox_token_is_nothing(keys, others):
    """One of another root key does not count."""
    assert keys.read_sandbox_token(others.sandbox_token(SANDBOX, 1)) is None


def test_no_changed_sandbox_token_counts(keys):
    """Whichever character is another one, left out or added, the token names nobody."""
    token = keys.sandbox_token(SANDBOX, 1)
    changed = [token[:at] + ("a" if token[at] != "a" else "b") + token[at + 1 :] for at in range(len(token))]
    changed += [token[:at] + token[at + 1 :] for at in range(len(token))]
    changed += [token + "a", token + "\n", " " + token, token.upper(), token[:-1] + "ä", token[:-1] + "\udc80", ""]
    assert {keys.read_sandbox_token(text) for text in changed} == {None}


def test_what_is_sealed_is_opened_as_what_it_is_about(keys):
    """Two seals of one text look different, and each opens."""
    one, other = keys.seal("sécret", about="ada"), keys.seal("sécret", about="ada")
    assert one[1] != other[1]
    assert b"cret" not in one[1]
    assert {Keys(ROOT).unseal(*sealed, about="ada") for sealed in (one, other)} == {"sécret"}


def test_nothing_else_opens_a_seal(keys, others):
    """Not in another's place, not with another root key, not changed in any byte, not cut short."""
    key_id, sealed = keys.seal("secret", about="ada")
    attempts = [(keys, key_id, sealed, "bob"), (others, key_id, sealed, "ada"), (keys, "other", sealed, "ada")]
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(len(sealed))]
    attempts += [(keys, key_id, content, "ada") for content in [*changed, sealed[:-1], sealed[:5], b"", os.urandom(40)]]
    for who, named, content, about in attempts:
        with pytest.raises(Unreadable):
            who.unseal(named, content, about=about)
