"""Only what this launch has signed is read."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, Store

from dpbench.errors import LaunchError, UsageError
from dpbench.launch.exchange import NOTHING, VARIABLE, Exchange, given_token

TOKEN = "a-token-of-the-tests"
OTHER = "another-token-of-tests"


def joined(store: Store, *tokens: str, seconds: float = 5.0, members: int = 2) -> list[Exchange]:
    """The members of one launch, when all of them have come."""
    made = [
        Exchange(store, token, "node", member=number, members=members)
        for number, token in enumerate(tokens)
    ]
    with ThreadPoolExecutor() as threads:
        joining = [threads.submit(one.join, {"n": n}, seconds) for n, one in enumerate(made)]
    assert [one.result() for one in joining] == [[{"n": 0}, {"n": 1}]] * 2
    return made


def test_what_this_launch_has_not_signed_is_ignored() -> None:
    store = HashStore()
    first, second = joined(store, TOKEN, TOKEN)
    first.put("order 0", {"trial": 3})
    signed = store.get("order 0")
    earlier_store = HashStore()
    joined(earlier_store, TOKEN, TOKEN)[0].put("order 5", {"trial": 3})
    forged = [
        signed[:-1] + b"\0",
        os.urandom(64),
        b"",
        signed,  # the value of another key
        signed.replace(b"0 ", b"1 ", 1),  # another counter
        earlier_store.get("order 5"),  # another launch
    ]
    for number, value in enumerate(forged):
        store.set(f"order {number}", value)
    assert [second.get(f"order {number}") for number in range(6)] == [NOTHING] * 6


def test_a_member_that_does_not_come_is_named() -> None:
    with pytest.raises(LaunchError, match="node 1 did not come within 200 ms"):
        Exchange(HashStore(), TOKEN, "node", member=0, members=2).join({}, 0.2)


def test_two_members_cannot_have_one_number() -> None:
    store = HashStore()
    first = Exchange(store, TOKEN, "node", member=0, members=2)

    def another_comes(_: str) -> None:
        store.set("hello 0", "of another process")
        store.set("hello 1", "of node 1")

    with pytest.raises(UsageError, match="another process has come as node 0 after this one"):
        first.join({}, 0.2, another_comes)


def test_a_member_with_another_token_does_not_join() -> None:
    store = HashStore()
    first, second = (
        Exchange(store, token, "node", member=number, members=2)
        for number, token in enumerate((TOKEN, OTHER))
    )
    with ThreadPoolExecutor() as threads:
        joining = [threads.submit(one.join, {}, 1.0) for one in (first, second)]
    for other, one in zip((1, 0), joining, strict=True):
        with pytest.raises(LaunchError, match=rf"node {other} \(with another token\) did not come"):
            one.result()


def test_the_token_comes_from_the_environment() -> None:
    assert given_token({}) is None
    assert given_token({VARIABLE: f"{TOKEN} "}) == TOKEN
    with pytest.raises(UsageError, match="15 characters; expected at least 16") as refused:
        given_token({VARIABLE: TOKEN[:15]})
    assert TOKEN[:15] not in str(refused.value)
