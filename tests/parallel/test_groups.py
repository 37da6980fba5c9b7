"""Ranks tell each other small messages of different lengths, and refuse overlong ones together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from dpbench.parallel.groups import gather_bytes, gather_values, largest
from dpbench.parallel.plain_values import NotPlain
from tests.parallel.ranks import run_ranks


def messages_of_any_length_arrive_in_the_order_of_the_ranks(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    for lengths in ((0, 0), (3, 0), (1024, 1), (1025, 0), (5, 100_000)):
        sent = [bytes([65 + other]) * length for other, length in enumerate(lengths)]
        assert gather_bytes(sent[rank], group) == sent
    assert gather_bytes(b"ends with zeros\0\0", group)[1] == b"ends with zeros\0\0"


def an_overlong_message_is_refused_on_every_rank(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    with pytest.raises(RuntimeError, match="rank 1 sends a message of 2000 bytes, expected at mo"):
        gather_bytes(b"x" * (2000 if rank else 10), group, limit_bytes=1999)
    assert gather_bytes(b"y" * 1999, group, limit_bytes=1999) == [b"y" * 1999] * 2


def values_arrive_as_they_were(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    value = {"rank": rank, "names": ("a", None), 3: [0.1, True]}
    assert gather_values(value, group) == [{**value, "rank": other} for other in range(2)]
    assert largest(5 - rank, group) == 5


def bytes_that_are_no_value_name_their_sender(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    if rank == 1:
        gather_bytes(b"?", group)
        return
    with pytest.raises(NotPlain, match="from rank 1: got a message that is no plain value: a let"):
        gather_values("hello", group)


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_two_ranks_exchange_messages(tmp_path: Path, backend: str) -> None:
    checks = [
        messages_of_any_length_arrive_in_the_order_of_the_ranks,
        an_overlong_message_is_refused_on_every_rank,
        values_arrive_as_they_were,
        bytes_that_are_no_value_name_their_sender,
    ]
    run_ranks(checks, tmp_path / "store", backend=backend)
