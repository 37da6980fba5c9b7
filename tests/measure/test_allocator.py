"""The allocator of a rank: each case in a process of its own, since it changes the process."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from functools import partial

import pytest
import torch

from dpbench.launch.machine import in_child
from dpbench.measure import allocator

PAGE_BYTES = 4096
TENSOR_BYTES = 24 * 2**20
ROUNDS = 10
PAGES = ROUNDS * 4 * TENSOR_BYTES // PAGE_BYTES

glibc = pytest.mark.skipif(
    sys.platform != "linux" or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"),
    reason="needs glibc",
)


def page_faults(*, keep: bool) -> tuple[str, int]:
    """What was done, and the page faults of taking and freeing 96 MiB ten times, in a process
    that up to then gives everything back at once: what glibc does by itself is a matter of luck."""
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        del os.environ[name]
    torch.set_num_threads(1)
    library = ctypes.CDLL(None)
    assert library.mallopt(allocator._M_MMAP_THRESHOLD, 64 * 1024)
    assert library.mallopt(allocator._M_TRIM_THRESHOLD, 0)
    done = allocator.keep_freed_memory() if keep else allocator.LEFT_ALONE
    take_and_free(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    take_and_free(ROUNDS)
    return done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def take_and_free(rounds: int) -> None:
    for _ in range(rounds):
        tensors = [torch.empty(TENSOR_BYTES, dtype=torch.uint8).fill_(1) for _ in range(4)]
        del tensors


def with_variable(name: str) -> str:
    os.environ[name] = "1"
    return allocator.keep_freed_memory()


def on_platform(name: str) -> str:
    sys.platform = name
    return allocator.keep_freed_memory()


@glibc
def test_freed_memory_is_kept_where_the_system_would_give_it_back() -> None:
    kept, faults = in_child(partial(page_faults, keep=True))
    left, system_faults = in_child(partial(page_faults, keep=False))
    assert (kept, left) == (allocator.KEPT, allocator.LEFT_ALONE)
    assert faults < PAGES / 10  # a block or two may move; each round would take all of them
    assert system_faults > 0.9 * PAGES  # without it the memory did go back and forth


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "MALLOC_CONF"])
def test_users_who_set_the_allocator_themselves_are_left_alone(name: str) -> None:
    assert in_child(partial(with_variable, name)) == allocator.LEFT_ALONE


def test_other_systems_are_left_alone() -> None:
    assert in_child(partial(on_platform, "darwin")) == allocator.LEFT_ALONE


def faults_of_variables() -> int:
    """Page faults of the rounds in a program that was started with the variables."""
    take_and_free(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    take_and_free(ROUNDS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_a_program_that_knows_nothing_of_dpbench_keeps_memory_by_its_variables() -> None:
    code = f"from {__name__} import faults_of_variables; print(faults_of_variables())"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(allocator.USERS_OWN)}
    # What glibc does by itself is a matter of luck, so the other gives everything back at once.
    at_once = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    faults = [
        int(subprocess.check_output([sys.executable, "-c", code], env={**clean, **variables}))
        for variables in (allocator.kept_variables(), at_once)
    ]
    assert faults[0] < PAGES / 10
    assert faults[1] > 0.9 * PAGES


def test_what_launch_has_set_can_be_forgotten_and_what_the_user_has_set_stays() -> None:
    environ = {"MALLOC_PERTURB_": "1", **allocator.kept_variables()}
    assert allocator.is_kept_by_launch(environ)
    allocator.forget_launch(environ)
    assert environ == {"MALLOC_PERTURB_": "1"}
    own = {"MALLOC_ARENA_MAX": "2"}
    allocator.forget_launch(own)
    assert own == {"MALLOC_ARENA_MAX": "2"}
