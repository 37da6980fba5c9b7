"""Only what this launch has signed is read; everything else in the store is counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch.distributed import HashStore

from dpbench.errors import UsageError
from dpbench.launch import signed_store
from dpbench.launch.signed_store import OPTION, VARIABLE, SignedStore, given_token

TOKEN = "a-token-of-the-tests"


def both(store: HashStore, *tokens: str) -> list[SignedStore]:
    """The members of one launch, when both have come."""
    here = [
        SignedStore(store, token, member=number, members=len(tokens))
        for number, token in enumerate(tokens)
    ]
    assert all(one.is_complete() for one in here)
    return here


def test_a_value_arrives_whole_with_its_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_store, "PIECE_BYTES", 100)
    store = HashStore()
    first, second = both(store, TOKEN, TOKEN)
    value = {"numbers": [number / 7 for number in range(500)], "nothing": None}
    first.put("a", value, counter=3)
    assert second.counted("a") == (3, value)
    assert second.get("b") is None
    first.forget("a")
    assert second.get("a") is None
    assert (first.rejected, second.rejected) == (0, 0)


def test_what_this_launch_has_not_signed_is_ignored_and_counted_once() -> None:
    store = HashStore()
    first, second = both(store, TOKEN, TOKEN)
    first.put("order 0", {"trial": 3})
    signed = store.get("order 0")
    piece = store.get("order 0, piece 0")
    forged = [
        ("order 1", os.urandom(64), piece),
        ("order 2", b"", piece),
        ("order 3", signed, piece),  # the value of another key
        ("order 4", signed.replace(b" 0 ", b" 1 "), piece),  # another counter
        ("order 5", signed.replace(b" 1 ", b" 999999999 "), piece),
    ]
    for key, header, content in forged:
        store.set(key, header)
        store.set(f"{key}, piece 0", content)
    store.set("order 0, piece 0", piece[:-1] + b"\0")
    for _ in range(2):
        assert [second.get(f"order {number}") for number in range(6)] == [None] * 6
    assert second.rejected == 6


def test_nothing_of_an_earlier_launch_or_of_another_token_is_taken() -> None:
    store = HashStore()
    earlier, _ = both(store, TOKEN, TOKEN)
    earlier.put("order 0", {"trial": 3})
    first, second = both(store, TOKEN, "another-token-of-tests")
    assert first.get("order 0") is None
    assert not first.other_token
    second.put("order 1", {"trial": 4})
    assert first.get("order 1") is None
    assert (first.other_token, first.rejected) == ({"order 1"}, 2)


def test_members_are_missed_replaced_or_told_another_number() -> None:
    store = HashStore()
    first = SignedStore(store, TOKEN, member=0, members=2)
    assert not first.is_complete()
    assert first.missing() == [1]
    second = SignedStore(store, TOKEN, member=1, members=2)
    assert second.is_complete()
    SignedStore(store, TOKEN, member=1, members=2)
    with pytest.raises(UsageError, match="another process has come as number 1"):
        second.is_complete()
    SignedStore(store, TOKEN, member=1, members=3)
    with pytest.raises(UsageError, match="2 here, and '3' elsewhere"):
        first.is_complete()


def test_the_token_comes_from_a_file_of_ones_own_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert given_token(None, {}) is None
    assert given_token(str(file), {}) == TOKEN
    assert given_token(str(file), {VARIABLE: f"{TOKEN} "}) == TOKEN


@pytest.mark.parametrize(
    ("text", "mode", "variable", "message"),
    [
        ("short", 0o600, None, "5 characters; expected 16 to 1024; make one with"),
        ("two words that are long", 0o600, None, "expected letters and digits in one line"),
        (TOKEN, 0o644, None, r"other users can read it \(mode 644\)"),
        (TOKEN, 0o600, "another-token-of-tests", "hold different tokens"),
        (None, 0o600, None, f"{OPTION} .*: No such file"),
    ],
)
def test_a_token_that_cannot_be_is_refused_and_not_shown(
    tmp_path: Path, text: str | None, mode: int, variable: str | None, message: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(UsageError, match=message) as refused:
        given_token(str(file), {VARIABLE: variable} if variable else {})
    assert text is None or text not in str(refused.value)
