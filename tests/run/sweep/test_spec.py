"""Options become the sweep of this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.errors import UsageError
from dpbench.options.sweep import SweepOptions
from dpbench.run.sweep import job
from dpbench.run.sweep.spec import build_sweep_spec
from tests.launch import synthetic

MACHINE = replace(synthetic.machine(), cores=4)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "machine_here", lambda: MACHINE)


def group_sizes(**options: object) -> tuple[int, ...]:
    """The group sizes of a sweep on a machine with four cores."""
    parsed = SweepOptions.model_validate({"arch": "mlp", **options})
    notes: list[str] = []
    return build_sweep_spec(parsed, [job.host_here(parsed, notes)], notes).group_sizes


@pytest.mark.parametrize(
    ("gpus", "sizes"),
    [(1, (1,)), (2, (1, 2)), (4, (1, 2, 3, 4)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))],
)
def test_group_sizes_default_to_all_up_to_four_and_above_to_powers_of_two_and_the_largest(
    gpus: int, sizes: tuple[int, ...]
) -> None:
    assert group_sizes(gpus=gpus, oversubscribe=True) == sizes


def test_the_group_size_max_is_all_replicas() -> None:
    assert group_sizes(group_sizes="max") == (4,)
    assert group_sizes(group_sizes="1,max", gpus=2) == (1, 2)
    assert group_sizes(group_sizes="max,1", gpus=1) == (1,)
    with pytest.raises(UsageError, match=r"--group-sizes: 5 is above the 4 replicas of this mach"):
        group_sizes(group_sizes="5,max")
