"""Errors of a user's code have its place; its random numbers repeat, and all others go on."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dpbench.architecture import load_function
from dpbench.architecture.user_errors import seeded, user_errors_in
from dpbench.errors import UsageError

THEIRS = """
def silent():
    raise AssertionError

def evaluates():
    eval("1 +")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silent", "raised AssertionError (theirs.py, line 3)"),
        ("evaluates", "raised SyntaxError: invalid syntax (theirs.py, line 6)"),
    ],
)
def test_the_line_is_the_innermost_of_the_users_code(here: Path, name: str, words: str) -> None:
    (here / "theirs.py").write_text(THEIRS)
    code = load_function(f"theirs.py:{name}", "code")
    with pytest.raises(UsageError) as raised, user_errors_in("it", "trying", code):
        code()
    assert str(raised.value) == f"it: trying {words}"


def drawn() -> list[float]:
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]


def test_numbers_repeat_inside_and_go_on_outside() -> None:
    before = torch.get_rng_state(), random.getstate()
    with seeded(3):
        first = drawn()
    with seeded(3):
        assert drawn() == first
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_generators_of_gpus_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding them as torch.manual_seed does could not be undone without starting CUDA."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(3):
        torch.rand(())
    assert seeds == []
