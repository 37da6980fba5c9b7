"""Only what this launch has signed is read; everything else in the store is counted."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, Store

from dpbench.errors import LaunchError, UsageError
from dpbench.launch import exchange
from dpbench.launch.exchange import OPTION, VARIABLE, Exchange, given_token

TOKEN = "a-token-of-the-tests"
OTHER = "another-token-of-tests"


def meet(store: Store, *tokens: str, seconds: float = 5.0, members: int = 2) -> list[Exchange]:
    """The members of one launch, when all of them have come."""
    made = [
        Exchange(store, token, "node", member=number, members=members)
        for number, token in enumerate(tokens)
    ]
    with ThreadPoolExecutor() as threads:
        meetings = [threads.submit(one.meet, {"n": n}, seconds) for n, one in enumerate(made)]
    assert [one.result() for one in meetings] == [[{"n": 0}, {"n": 1}]] * 2
    return made


def test_a_value_arrives_whole_with_its_counter() -> None:
    first, second = meet(HashStore(), TOKEN, TOKEN)
    value = {"numbers": [number / 7 for number in range(500)], "nothing": None}
    first.put("a", value, counter=3)
    assert second.counted("a") == (3, value)
    assert second.get("b") is None
    first.set("a", None)
    assert second.get("a") is None
    assert (first.rejected, second.rejected) == (0, 0)


def test_what_this_launch_has_not_signed_is_ignored_and_counted_once() -> None:
    store = HashStore()
    first, second = meet(store, TOKEN, TOKEN)
    first.put("order 0", {"trial": 3})
    signed = store.get("order 0")
    earlier, _ = meet(HashStore(), TOKEN, TOKEN)
    forged = [
        signed[:-1] + b"\0",
        os.urandom(64),
        b"",
        signed,  # the value of another key
        signed.replace(b" 0 ", b" 1 "),  # another counter
        earlier.signed("order 5", {"trial": 3}),  # another launch
    ]
    for number, value in enumerate(forged):
        store.set(f"order {number}", value)
    for _ in range(2):
        assert [second.get(f"order {number}") for number in range(6)] == [None] * 6
    assert second.rejected == 6


def test_a_value_that_the_store_cannot_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = meet(HashStore(), TOKEN, TOKEN)
    monkeypatch.setattr(exchange, "LARGEST_BYTES", 20)
    with pytest.raises(LaunchError, match=r"'result' has .*, more than the store takes"):
        first.signed("result", [number / 7 for number in range(500)])


@pytest.mark.parametrize(
    ("others", "error", "message"),
    [
        ([], LaunchError, "node 1 did not come within 200 ms"),
        ([(TOKEN, 1, 3)], UsageError, "2 here, and '3' elsewhere"),
        ([(TOKEN, 0, 2)], UsageError, "another process has come as node 0 after this one"),
    ],
)
def test_members_that_do_not_go_together_are_refused(
    others: list[tuple[str, int, int]], error: type[Exception], message: str
) -> None:
    store = HashStore()
    first = Exchange(store, TOKEN, "node", member=0, members=2)

    def another_comes(_: str) -> None:
        for token, member, members in others:
            other = Exchange(store, token, "node", member=member, members=members)
            with pytest.raises(LaunchError):
                other.meet({}, 0.0)
            store.set(f"hello {member}", f"0 of {members}")

    if others and others[0][1] == 0:
        store.set("hello 1", "0 of 2")
    with pytest.raises(error, match=message):
        first.meet({}, 0.2, another_comes)


def test_a_member_with_another_token_learns_why_it_cannot_join() -> None:
    store = HashStore()
    first, second = (
        Exchange(store, token, "node", member=number, members=2)
        for number, token in enumerate((TOKEN, OTHER))
    )
    with ThreadPoolExecutor() as threads:
        leading = threads.submit(first.meet, {}, 1.0)
        following = threads.submit(second.meet, {}, 1.0)
    with pytest.raises(LaunchError, match="node 1 did not come"):
        leading.result()
    with pytest.raises(UsageError, match="node 0 has another token than this node"):
        following.result()


@pytest.mark.parametrize(
    ("text", "mode", "variable", "expected"),
    [
        (None, 0, None, None),
        (None, 0, f"{TOKEN} ", TOKEN),
        (f"{TOKEN}\n", 0o600, None, TOKEN),
        ("short", 0o600, None, "5 characters; expected 16 to 1024; make one with"),
        ("two words that are long", 0o600, None, "expected letters and digits in one line"),
        (TOKEN, 0o644, None, r"other users can read it \(mode 644\)"),
    ],
)
def test_the_token_comes_from_a_file_of_ones_own_or_the_environment(
    tmp_path: Path, text: str | None, mode: int, variable: str | None, expected: Any
) -> None:
    environ = {VARIABLE: variable} if variable else {}
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    if expected in (None, TOKEN):
        assert given_token(None if text is None else str(file), environ) == expected
        return
    with pytest.raises(UsageError, match=expected) as refused:
        given_token(str(file), environ)
    assert text is None or text not in str(refused.value)
    with pytest.raises(UsageError, match=f"{OPTION} .*: No such file"):
        given_token(str(tmp_path / "nothing"), environ)
