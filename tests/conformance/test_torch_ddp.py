"""torch's own tests for DistributedDataParallel pass with ours in its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance.background import Run, every_name
from tests.conformance.cases import FOUR_RANKS, INTERNAL, SLOW, TWO_RANKS, UNFIT

CONTROLS = {2: {*TWO_RANKS} - SLOW, 4: {*FOUR_RANKS}}
CASES = [(2, name) for name in TWO_RANKS] + [(4, name) for name in FOUR_RANKS]
PINNED = (Path(__file__).parent.parent.parent / "constraints.txt").read_text()
IS_PINNED = f"torch=={torch.__version__.partition('+')[0]}\n" in PINNED
ON_PINNED = pytest.mark.skipif(not IS_PINNED, reason="the tables are those of the pinned torch")


def _arguments(item: pytest.Item) -> list[str]:
    """The names of the arguments of a test function."""
    return list(inspect.signature(item.function).parameters)


@pytest.fixture(scope="module", autouse=True)
def controls(request: pytest.FixtureRequest) -> Iterator[dict[int, Run]]:
    """Runs with torch's own class, beside those with ours, if they are asked for."""
    asked = {
        item.callspec.params["world_size"]
        for item in request.session.items
        if item.path == request.path and "controls" in _arguments(item)
    }
    runs = {size: Run("torch", size, sorted(CONTROLS[size])) for size in asked}
    yield runs
    for run in runs.values():
        run.close()


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest) -> Iterator[Callable[..., dict[str, Any]]]:
    """Outcome of a test of torch's with ours; those of a size that were selected share a run."""
    selected = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "case" in _arguments(item)
    ]
    runs: dict[int, Run] = {}

    def ask(world_size: int, name: str) -> dict[str, Any]:
        if world_size not in runs:
            names = [name for size, name in selected if size == world_size]
            runs[world_size] = Run("ours", world_size, names)
        return runs[world_size].outcome(name)

    yield ask
    for run in runs.values():
        run.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case[1], marks=pytest.mark.slow if case[1] in SLOW else ())
        for case in CASES
    ],
)
def test_ours_passes(case: tuple[int, str], outcome: Callable[..., dict[str, Any]]) -> None:
    result = outcome(*case)
    if result["status"] == "missing" and not IS_PINNED:
        pytest.skip(f"torch {torch.__version__} has no such test")
    assert result["status"] == "passed", result["detail"]


@ON_PINNED
def test_the_tables_name_every_test_that_builds_a_ddp() -> None:
    assert {*TWO_RANKS, *FOUR_RANKS, *INTERNAL, *UNFIT} == every_name()


@ON_PINNED
@pytest.mark.slow
@pytest.mark.parametrize("world_size", CONTROLS, ids=lambda size: f"{size} ranks")
def test_torchs_own_class_passes_what_is_asked_of_ours(
    world_size: int, controls: dict[int, Run]
) -> None:
    assert controls[world_size].passed() == CONTROLS[world_size]
