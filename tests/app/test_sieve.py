"""Secrets in pieces: wherever and however often one is cut, little or nothing of it can be read in what is stored."""

import base64
import json
import random
import re
import string

import pytest

from app import spellings
from app.masking import LANES, MARK, REMEMBERED_LANES, Mask
from app.secrets import SANDBOX_PREFIX
from app.sieve import PIECE_CHARS
from app.tokens import PREFIXES
from app.upstream import OAUTH_PREFIX
from tests.app.test_masking import MASK, SECRETS
from tests.schema import boxes

LINE = ("log", "")
NOISE = "≈"  # in no secret
WRAPPED = ["{}", "{}\n", '"{}"', "\t'{}' \r\n", "`{}`"]
CONSTANT = re.compile("omoi_sbx_|sk-ant-api03-|ghp_|")
KINDS = [
    SANDBOX_PREFIX,
    *PREFIXES.values(),
    *("sk-ant-api03-", OAUTH_PREFIX + "01-", "sk-ant-"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "dtn_"),
]
ALPHABETS = ["-_", "abcd-", "ABC9_", string.ascii_letters + string.digits + "-_", "sk-ant-gh_"]


def cut(form, rng):
    """The form in pieces of any length, the first behind other text and the last before it, each wrapped alike."""
    places = sorted(rng.sample(range(1, len(form)), rng.randint(1, min(6, len(form) - 1))))
    pieces = [form[a:b] for a, b in zip([0, *places], [*places, len(form)], strict=True)]
    pieces = [NOISE + pieces[0], *pieces[1:-1], pieces[-1] + NOISE]
    around = rng.choice(WRAPPED)
    return [around.format(piece) for piece in pieces]


def told(texts):
    return [(LINE, {"text": text, "level": "info"}) for text in texts]


def left(values):
    """What can be read of the secret."""
    return re.sub(f"[{NOISE}{MARK} \t\r\n\"'`]", "", "".join(value["text"] for value in values))


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_nothing_is_left_in_one_series(secret):
    """In pieces of one series each piece is taken out, a single character too."""
    rng = random.Random(7)
    for form, _ in spellings.of(secret):
        for _ in range(40):
            values, _begun = MASK.series(told(cut(form, rng)), ())
            assert left(values) == "", form


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_little_is_left_over_many_series(secret):
    """In pieces that are stored one by one, less than eight characters stay behind what is no secret."""
    rng = random.Random(11)
    for form, constant in spellings.of(secret):
        assert constant <= 2 * len(CONSTANT.match(secret)[0])  # hex has two characters for one
        for _ in range(40):
            begun, values = [], []
            for one in told(cut(form, rng)):
                found, begun = Mask(SECRETS).series([one, (("other",), "mine")], json.loads(json.dumps(begun)))
                values.append(found[0])
            assert len(left(values)) < constant + PIECE_CHARS, form


@pytest.mark.parametrize("alphabet", ALPHABETS, ids=range(len(ALPHABETS)))
@pytest.mark.parametrize("kind", ["", *KINDS])
def test_of_a_random_secret_only_its_kind_is_known(kind, alphabet):
    """Blanks of any sort in a passphrase or a key make no part of it known: less than eight characters of it stay."""
    rng = random.Random(f"{kind} {alphabet}")
    for size in (*range(8, 24), 40, 80):
        secret = kind + "".join(rng.choices(alphabet, k=size))
        mask = Mask([secret])
        assert {constant for _, constant in spellings.of(secret)} >= {len(kind)}
        for _ in range(10):
            begun, values = [], []
            for one in told(cut(secret, rng)):
                found, begun = mask.series([one], begun)
                values += found
            assert len(left(values)) < len(kind) + PIECE_CHARS, secret


@pytest.mark.parametrize(
    "secret", ["correct-horse-battery-staple", "token-for-ci-hunter2", "my_old_dog_rex99", "sk-12-34567"]
)
def test_no_part_of_a_passphrase_is_known(secret):
    """Words with dashes between them are no kind of secret, although most kinds look so."""
    assert {constant for _, constant in spellings.of(secret)} == {0}
    assert Mask([secret]).text(f"It is {secret[:8]}") == f"It is {MARK}"


def test_lanes_are_told_apart():
    """Pieces in texts of different kinds do not follow each other, whatever stands between those that do is passed."""
    token = SECRETS[1]
    pieces = [token[:3], token[3:30], token[30:]]
    told = [value for piece in pieces for value in ((LINE, {"text": piece}), (("message", ""), {"text": "And so on."}))]
    values, _ = MASK.series(told, ())
    assert values[::2] == [{"text": MARK}] * 3
    assert values[1::2] == [{"text": "And so on."}] * 3
    values, _ = MASK.series([(("a",), pieces[0]), (("b",), pieces[1][:6]), (("c",), pieces[2][:6])], ())
    assert values == [pieces[0], pieces[1][:6], pieces[2][:6]]


def test_text_between_the_pieces_ends_it():
    """What a secret's beginning is not followed by is no piece of one."""
    told_first = told([SECRETS[4][:3], "no", SECRETS[4][3:5], ""])
    values, begun = MASK.series(told_first, ())
    assert values == [value for _, value in told_first]
    assert MASK.series(told([SECRETS[4][5:]]), begun)[0] == [{"text": "r22", "level": "info"}]


def test_what_is_not_between_two_pieces():
    """Empty texts, and what is said elsewhere meanwhile."""
    secret = SECRETS[1]
    _, begun = MASK.series(told([secret[:20]]), ())
    _, begun = MASK.series(told(["", " \n"]), begun)
    _, begun = MASK.series([(("other",), "Meanwhile.")], begun)
    values, _ = MASK.series(told([secret[20:30]]), begun)
    assert values[0]["text"] == MARK


def test_items_of_a_list_follow_each_other():
    """The lines of one output, too."""
    token = SECRETS[2]
    assert MASK.value({"lines": [{"t": token[:2]}, {"t": token[2:9]}, {"t": token[9:]}]}) == {
        "lines": [{"t": MARK}] * 3
    }


@pytest.mark.parametrize("width", [1, 19, 76])
def test_line_breaks_hide_nothing(width):
    """Base64 is wrapped at 76 characters, hex is parted by blanks."""
    for secret in SECRETS:
        encoded = base64.b64encode(f"KEY={secret}\nX".encode()).decode()
        lines = "\n".join(encoded[at : at + width] for at in range(0, len(encoded), width))
        for masked in (MASK.text(f"{lines}\n"), MASK.bytes_(lines.encode()).decode()):
            assert MARK in masked
            assert len(masked) < len(lines)
        assert MASK.text(f"a {secret.encode().hex(' ')} b") == f"a {MARK} b"


def test_what_is_remembered_is_bounded_and_says_nothing():
    """However many places texts have; secrets and places have names that tell nothing without the key."""
    many = {f"field{number}": SECRETS[0][:14] for number in range(2 * LANES)}
    values, begun = MASK.series([(LINE, many)], ())
    assert len(begun) == REMEMBERED_LANES
    assert not [word for word in ("omoi", "field", "log") if word in json.dumps(begun)]
    assert len(values[0]) == 2 * LANES
    assert MASK.series([], Mask(["another-secret"]).series(told(["another"]), ())[1])[0] == []
    assert {name for _, name, _ in Mask(SECRETS, key=b"1").series(told(["omoi"]), ())[1]}.isdisjoint(
        name for _, name, _ in Mask(SECRETS, key=b"2").series(told(["omoi"]), ())[1]
    )


@pytest.mark.parametrize("at_once", [True, False])
async def test_pieces_of_a_token_are_not_stored(ada, apollo, at_once):
    """The sandbox's own, said in five lines and by five reports: the few characters before it is told may stay."""
    box = await boxes.spawn(ada, apollo)
    token = box.token
    pieces = [token[:11], token[11:12], token[12:40], token[40:41], token[41:]]
    lines = [box.event("LOG", {"text": piece}) for piece in pieces]
    for batch in [lines] if at_once else [[line] for line in lines]:
        await box.report(*batch)
    document = "query($id: ID!) { sandbox(id: $id) { events(first: 50, types: [LOG]) { nodes { payload } } } }"
    nodes = (await ada(document, id=box.id)).data["sandbox"]["events"]["nodes"]
    assert [node["payload"]["text"] for node in nodes] == [*([MARK] * 2 if at_once else pieces[:2]), MARK, MARK, MARK]
