"""The root key and what is derived from it: the tokens of sandboxes, and the seal on what is stored for users."""

import base64
import binascii
import hmac
import os
import re
import secrets
import stat
from hashlib import sha256
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.errors import AppError, CannotStart
from app.settings import Settings

SANDBOX_PREFIX = "omoi_sbx_"
KEY_BYTES = 32
KEY_FILE = "root.key"
NONCE_BYTES = 12
MAC_BYTES = 20
ID_BYTES, ATTEMPT_BYTES = 16, 4
PART_CHARS = 32  # 20 bytes in base32, both the id with its attempt and the MAC
KEY_ID_CHARS = 16
TOKEN = re.compile(f"{SANDBOX_PREFIX}([a-z2-7]{{{PART_CHARS}}})_[a-z2-7]{{{PART_CHARS}}}")
HEX = re.compile(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")


class Unreadable(AppError):
    """What was sealed is not what is there now, or another root key sealed it."""

    def __init__(self, message: str = "A stored secret was changed outside of OmoiOS and cannot be read.") -> None:
        super().__init__(message)


class Keys:
    """One key for each purpose. Replicas with the same root key understand each other's tokens and seals."""

    def __init__(self, root: bytes) -> None:
        self._mac = _derived(root, "sandbox tokens")
        self._cipher = AESGCM(_derived(root, "stored secrets"))
        self.masked = _derived(root, "names of masked secrets")
        self.fingerprint = _derived(root, "fingerprint")  # tells root keys apart and says nothing about them
        self._key_id = self.fingerprint.hex()[:KEY_ID_CHARS]

    @classmethod
    def load(cls, settings: Settings) -> "Keys":
        """From OMOI_ROOT_KEY, else from the data folder, where the first start makes a key of its own."""
        if settings.root_key is None:
            return cls(_from_file(settings.data / KEY_FILE))
        root = _parsed(settings.root_key)
        if root is None:
            raise CannotStart(
                f"OMOI_ROOT_KEY must be {KEY_BYTES} bytes in base64 or hex. `openssl rand -base64 32` makes one."
            )
        return cls(root)

    def sandbox_token(self, sandbox_id: UUID, attempt: int) -> str:
        """What the worker of one attempt shows. It is never stored: whoever has the root key can write it again."""
        whose = sandbox_id.bytes + attempt.to_bytes(ATTEMPT_BYTES)
        mac = hmac.digest(self._mac, whose, sha256)[:MAC_BYTES]
        return f"{SANDBOX_PREFIX}{_base32(whose)}_{_base32(mac)}"

    def read_sandbox_token(self, text: str) -> tuple[UUID, int] | None:
        """The sandbox and the attempt, or None for a text that these keys have not written."""
        shape = TOKEN.fullmatch(text)
        if shape is None:
            return None
        whose = base64.b32decode(shape[1].upper())
        sandbox_id, attempt = UUID(bytes=whose[:ID_BYTES]), int.from_bytes(whose[ID_BYTES:])
        genuine = hmac.compare_digest(self.sandbox_token(sandbox_id, attempt), text)
        return (sandbox_id, attempt) if genuine else None

    def seal(self, plaintext: str, *, about: str) -> tuple[str, bytes]:
        """The key's id, and bytes that only these keys open, and only as what they are about."""
        nonce = os.urandom(NONCE_BYTES)
        return self._key_id, nonce + self._cipher.encrypt(nonce, plaintext.encode(), about.encode())

    def unseal(self, key_id: str, sealed: bytes, *, about: str) -> str:
        if key_id != self._key_id:
            raise Unreadable("A stored secret was sealed with another root key and cannot be read.")
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about.encode()).decode()
        except (InvalidTag, ValueError):  # ValueError: too little is left to be sealed at all
            raise Unreadable from None


def _derived(root: bytes, purpose: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=f"omoi {purpose}".encode()).derive(root)


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()


def _parsed(text: str) -> bytes | None:
    text = text.strip()
    if HEX.fullmatch(text):
        return bytes.fromhex(text)
    bare = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        root = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return root if len(root) == KEY_BYTES else None


def _from_file(file: Path) -> bytes:
    try:
        if not file.exists():
            _make(file)
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise CannotStart(f"Others may read the root key {file}. Run `chmod 600 {file}`.")
        root = _parsed(file.read_text("ascii"))
    except OSError as error:
        raise CannotStart(
            f"The root key {file} cannot be kept there: {error.strerror}. Set OMOI_DATA or OMOI_ROOT_KEY."
        ) from error
    except UnicodeDecodeError:
        root = None
    if root is None:
        raise CannotStart(f"The root key {file} is damaged. Bring it back from a backup, or set OMOI_ROOT_KEY.")
    return root


def _make(file: Path) -> None:
    """A key that appears whole under its name; of two processes that make one, both use the first."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(draft, file)
        except FileExistsError:
            return
        _sync(file.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """A name that was not written down is lost with the power, and every seal with it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
