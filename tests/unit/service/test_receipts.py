"""Receipts as tokens: only who has the secret can make, read or change one."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND
from penstock.errors import InvalidOption, InvalidReceipt
from penstock.model import MAX_KEY_PART, MAX_KEY_PARTS, Charge, Receipt
from penstock.quota import Quota
from penstock.service.api.quotas import TOGETHER
from penstock.service.receipts import Tokens

NOW = 1_700_000_000 * SECOND
TOKENS = Tokens(b"a secret for all")
QUOTAS = [
    "100/minute",
    "10/second burst 20",
    "5/15 minutes rolling_window penalty 15m",
    "5 concurrent ttl 30s name uploads",
    "10000/month calendar Europe/Berlin",
    "100/minute leaky_bucket queue 7",
    "min_interval 250ms",
    "3/hour count denied",
]
ONE = Receipt((Charge("alice@example.com", Quota.parse("100/minute"), 3, 28_333_333),), "alice@example.com@17")

keys = st.text(min_size=1, max_size=40) | st.lists(st.text(min_size=1, max_size=9), min_size=2, max_size=4).map(tuple)
charges = st.builds(
    Charge, keys, st.sampled_from(QUOTAS).map(Quota.parse), st.integers(1, 2**53), st.integers(0, 2**130)
)
receipts = st.builds(
    Receipt, st.lists(charges, max_size=4).map(tuple), st.none() | st.text(), st.sampled_from(["store", "local"])
)


@given(receipts)
def test_receipt_is_opened_as_it_was_sealed(receipt: Receipt) -> None:
    token = TOKENS.seal(receipt, NOW)
    assert TOKENS.open(token, NOW) == receipt
    assert token.isascii()
    assert "=" not in token


def test_the_longest_key_with_as_many_quotas_as_a_call_may_name_is_opened() -> None:
    """A token that is handed out and then refused would hold places for ever."""
    key = ("k" * MAX_KEY_PART,) * MAX_KEY_PARTS
    quota = "100000/365 days penalty 15m count denied min_interval 250ms name a-rather-long-name-of-"
    receipt = Receipt(tuple([Charge(key, Quota.parse(f"{quota}{n}"), 2**53, 2**130) for n in range(TOGETHER)]), "r")
    assert TOKENS.open(TOKENS.seal(receipt, NOW), NOW) == receipt


@given(receipts, st.data())
def test_a_token_with_any_bit_changed_is_refused(receipt: Receipt, data: st.DataObject) -> None:
    token = TOKENS.seal(receipt, NOW)
    raw = bytearray(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidReceipt, match=r"^receipt: "):
        TOKENS.open(urlsafe_b64encode(raw).rstrip(b"=").decode(), NOW)


@given(st.text(max_size=99) | st.binary(max_size=99).map(lambda raw: urlsafe_b64encode(raw).rstrip(b"=").decode()))
def test_forged_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidReceipt, match=r"^receipt: "):
        TOKENS.open(token, NOW)


def test_errors_of_tokens_name_the_cause() -> None:
    token = TOKENS.seal(ONE, NOW)
    with pytest.raises(InvalidReceipt, match=r"^receipt: expected a token exactly as the service returned it$"):
        TOKENS.open(token[:-3], NOW) if len(token) % 4 == 0 else TOKENS.open(f"{token}=", NOW)
    with pytest.raises(
        InvalidReceipt, match=r"^receipt: made with another secret, or changed \(do all servers share one"
    ):
        Tokens(b"another secret..").open(token, NOW)
    with pytest.raises(InvalidReceipt, match=r"^receipt: a token of version 2 \(expected version 1\)$"):
        TOKENS.open("Ag" + token[2:], NOW)
    with pytest.raises(InvalidReceipt, match=r"^receipt: expired"):
        TOKENS.open(token, NOW + 86_400 * SECOND)
    assert TOKENS.open(token, NOW + 86_399 * SECOND) == ONE


def test_token_expires_when_its_charges_no_longer_count() -> None:
    month = Receipt((Charge("k", Quota.parse("5/month calendar"), 1, 0),))
    TOKENS.open(TOKENS.seal(month, NOW), NOW + 30 * 86_400 * SECOND)
    place = Receipt((Charge("k", Quota.parse("5 concurrent ttl 30s"), 1, 0),))
    TOKENS.open(TOKENS.seal(place, NOW), NOW + 10**6 * 86_400 * SECOND)


def test_token_reveals_nothing_of_its_content() -> None:
    raw = urlsafe_b64decode(TOKENS.seal(ONE, NOW) + "==")
    assert b"alice" not in raw
    assert b"minute" not in raw
    other = urlsafe_b64decode(TOKENS.seal(ONE._replace(record="alice@example.com@18"), NOW) + "==")
    assert raw[17:25] != other[17:25]  # contents that begin alike are hidden by streams that do not


def test_equal_receipts_make_equal_tokens_with_equal_secrets() -> None:
    assert Tokens(b"a secret for all").seal(ONE, NOW) == TOKENS.seal(ONE, NOW)
    assert Tokens(b"another secret..").seal(ONE, NOW) != TOKENS.seal(ONE, NOW)


def test_local_charges_of_another_host_are_not_refunded_here() -> None:
    token = TOKENS.seal(ONE._replace(source="local"), NOW)
    assert TOKENS.open(token, NOW).charges
    assert Tokens(b"a secret for all").open(token, NOW) == Receipt(())


@pytest.mark.parametrize("secret", [b"short", "a text of many characters"])
def test_a_secret_is_long_enough_and_not_shown(secret: bytes) -> None:
    with pytest.raises(InvalidOption, match=r"^secret: expected at least 16 bytes$"):
        Tokens(secret)
    assert repr(TOKENS) == "<Tokens>"
