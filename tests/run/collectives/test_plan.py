from __future__ import annotations

from itertools import pairwise

import pytest

from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.run.collectives.options import CommOptions
from dpbench.run.collectives.plan import build_collective_specs, parse_comm_options, parse_sizes
from dpbench.specs.settings import defaults_as_typed, from_texts
from dpbench.units import bytes_exact


def parsed(text: str) -> tuple[int, ...]:
    return parse_sizes("--sizes", text, multiple_of=4, notes=[])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4B-1KiB", (4, 16, 64, 256, 1024)),
        ("4B-1KB", (4, 16, 64, 256, 1000)),
        ("1MiB-4MiBx2", (2**20, 2**21, 2**22)),
        ("8B-8B", (8,)),
        ("25MiB,4B,1KB", (4, 1000, 25 * 2**20)),
        ("1 mb", (10**6,)),
        ("1GiB", (2**30,)),
    ],
)
def test_a_range_holds_both_ends_and_a_list_rises(text: str, sizes: tuple[int, ...]) -> None:
    assert parsed(text) == sizes


def test_the_default_range_is_that_of_the_help() -> None:
    sizes = parsed("4B-256MB")
    assert (sizes[0], sizes[-1], len(sizes)) == (4, 256 * 10**6, 14)
    assert all(larger == 4 * smaller for smaller, larger in pairwise(sizes[:-1]))


def test_a_size_is_written_in_the_largest_unit_that_divides_it() -> None:
    sizes = (4, 1000, 1024, 256_000, 25 * 2**20, 256 * 10**6, 1001)
    assert [bytes_exact(n) for n in sizes] == [
        "4 B",
        "1 KB",
        "1 KiB",
        "256 KB",
        "25 MiB",
        "256 MB",
        "1,001 B",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("4TB", "'4TB' is not a size; expected a whole number up to 1 TiB"),
        ("0B", "'0B' is not a size"),
        ("4", "'4' has no unit; expected 4B or 4MB"),
        ("4B-256", "'256' has no unit; expected 256B or 256MB"),
        ("1.5KB", "'1.5KB' is not a size"),
        ("9999999999999GB", "is not a size"),
        ("6B", "6 B are not whole elements; expected multiples of 4 B"),
        ("4B-", "'4B-': expected smallest-largest, as in 4B-256MB"),
        ("-4B", "'-4B': expected smallest-largest, as in 4B-256MB"),
        ("1KB-4B", "the range falls"),
        ("4B-1KBx1", "a factor of at least 2"),
        ("4B-1KBx", "'' is not a positive integer"),
        ("4B-1KBx3.5", "'3.5' is not a positive integer"),
        ("4B,,8B", "empty entry"),
    ],
)
def test_what_is_no_size_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parsed(text)
    assert str(error.value).startswith("--sizes")


@pytest.mark.parametrize(("typed", "asked"), [({}, "this machine"), ({"gpus": "1"}, "--gpus 1")])
def test_one_rank_alone_is_refused_by_what_asked_for_it(typed: dict[str, str], asked: str) -> None:
    options = from_texts(CommOptions, {**defaults_as_typed(CommOptions), **typed}, [])
    machine = Machine(cores=1, gpus=(), cuda=None, missing_backends=())
    with pytest.raises(UsageError, match=f"at least 2 ranks, and {asked} means 1"):
        build_collective_specs(parse_comm_options(options, []), machine)
