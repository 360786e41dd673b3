"""The ways in which a secret is commonly written down, each with the part of it that says nothing."""

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

# What all secrets of a kind begin with: ours, Anthropic's, GitHub's, GitLab's and Daytona's. Others may be passphrases,
# of which no part is known, whatever stands between their words.
CONSTANT = re.compile(
    r"omoi_(?:sbx|pat|ses|link)_"
    r"|sk-ant-(?:(?:api|oat|ort|sid|admin)[0-9]{2}-)?"
    r"|gh[pousr]_|github_pat_"
    r"|gl(?:pat|dt|cbt|oas)-"
    r"|dtn_"
)
BITS_OF_BASE64 = 6


def of(secret: str) -> Iterator[tuple[str, int]]:
    """Each way to write it, and how many of its first characters are the same for every secret of its kind."""
    found = CONSTANT.match(secret)
    constant = found[0] if found else ""
    for form in (secret, *_escaped_all(secret), *_url_encoded(secret)):
        yield form, len(constant)
    data, known = secret.encode("utf-8", "surrogatepass"), constant.encode()
    yield data.hex(), 2 * len(known)
    yield data.hex().upper(), 2 * len(known)
    yield from _base64(data, len(known))


def _escaped_all(secret: str) -> Iterator[str]:
    once = _escaped(secret)
    yield from (once, _escaped(once), once.replace("/", "\\/"))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _url_encoded(secret: str) -> Iterator[str]:
    for safe in ("", "/", "/:@!$&'()*+,;=~"):
        for encode in (quote, quote_plus):
            form = encode(secret, safe=safe, errors="surrogatepass")
            yield form
            yield re.sub(r"%..", lambda escape: escape[0].lower(), form)


def _base64(data: bytes, known: int) -> Iterator[tuple[str, int]]:
    """What of its encoding does not depend on what stands before and after it, at each of three places."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        first = -(-8 * before // BITS_OF_BASE64)
        last = 8 * (before + len(data)) // BITS_OF_BASE64
        constant = max(0, 8 * (before + known) // BITS_OF_BASE64 - first) if known else 0
        yield encoded[first:last], constant
        yield encoded[first:last].replace("+", "-").replace("/", "_"), constant
