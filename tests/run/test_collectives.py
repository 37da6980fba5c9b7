from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.options.bridge import read_options
from dpbench.options.comm import CommOptions
from dpbench.run.collectives import build_collective_specs
from dpbench.units import bytes_exact


def parsed(text: str) -> tuple[int, ...]:
    return read_options(CommOptions, {"sizes": text}).sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4B-1KiB", (4, 16, 64, 256, 1024)),
        ("4B-1KB", (4, 16, 64, 256, 1000)),
        ("8B-8B", (8,)),
        ("25MiB,4B,1KB", (4, 1000, 25 * 2**20)),
        ("1 mb", (10**6,)),
        ("1GiB", (2**30,)),
    ],
)
def test_a_range_holds_both_ends_and_a_list_rises(text: str, sizes: tuple[int, ...]) -> None:
    assert parsed(text) == sizes


def test_a_size_is_written_in_the_largest_unit_that_divides_it() -> None:
    written = {4: "4 B", 1000: "1 KB", 1024: "1 KiB", 25 * 2**20: "25 MiB", 1001: "1,001 B"}
    assert {n: bytes_exact(n) for n in written} == written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": ""}, "expected a comma-separated list"),
        ({"sizes": "4TB"}, "4TB: expected a multiple of 4 B up to 1 TiB"),
        ({"sizes": "4B-256"}, "256: expected a multiple of 4 B"),
        ({"sizes": "6B"}, "6B: expected a multiple of 4 B"),
        ({"sizes": "1KB-4B"}, "expected smallest-largest, as in 4B-256MB"),
        ({"collectives": "all_redce"}, "did you mean 'all_reduce'?"),
        ({"group_sizes": "1"}, "expected 2 or more"),
    ],
)
def test_what_cannot_be_measured_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_options(CommOptions, options)
    assert message in str(error.value)


def test_what_cannot_run_here_is_refused() -> None:
    machine = Machine(cores=1, gpus=(), cuda=None, missing_backends=())
    with pytest.raises(UsageError, match="a collective takes at least 2 ranks"):
        build_collective_specs(CommOptions(), machine)
    with pytest.raises(UsageError, match="--backends nccl: nccl reduces CUDA tensors only"):
        build_collective_specs(CommOptions(backends="gloo,nccl"), replace(machine, cores=2))
