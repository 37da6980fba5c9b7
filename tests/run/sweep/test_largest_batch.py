"""`--batch-sizes max`: what is tried, what is said, and what becomes of the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.errors import UsageError
from dpbench.launch import agent
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.machine import Machine
from dpbench.records.trial import Status
from dpbench.run.sweep import largest_batch
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.largest_batch import (
    NOISE_BYTES,
    RESOLUTION,
    Search,
    as_typed,
    available_memory_bytes,
    by_predicting,
    by_trying,
    with_largest,
    within_time,
)
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import TrialSpec
from tests.builders import sweep_spec, trial_spec
from tests.cli.synthetic import dpbench
from tests.cli.typed import parsed_options
from tests.launch.synthetic import SyntheticLauncher
from tests.run.sweep.test_arguments import asked

pytestmark = pytest.mark.usefixtures("synthetic")

MIB = 2**20
MACHINE = Machine(cores=2, gpus=(), cuda=None, missing_backends=())


class Filling(SyntheticLauncher):
    """100 MiB and one more a sample; above 1000 MiB memory runs out."""

    def __init__(self, *_: object, **__: object) -> None:
        self.tried: list[int] = []

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialOutcome:
        self.tried.append(trial.batch_size)
        peak = (100 + trial.batch_size) * MIB
        if peak > 1000 * MIB:
            return TrialOutcome(status=Status.OUT_OF_MEMORY, reason="too large")
        outcome = super().run(trial, time_limit_seconds)
        ranks = tuple(replace(rank, peak_host_memory_bytes=peak) for rank in outcome.ranks)
        return replace(outcome, ranks=ranks)


def options(**typed: Any) -> ParsedOptions:
    defaults = asked("--arch", "mlp", "--data", "synthetic", "--group-sizes", "1,2").options()
    return parsed_options(**{**defaults, **typed})


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, ...]]:
    monkeypatch.setattr(agent, "ElasticLauncher", Filling)
    monkeypatch.setattr(
        "dpbench.run.sweep.largest_batch.available_memory_bytes", lambda: 2000 * MIB
    )

    def find(**typed: Any) -> tuple[int, ...]:
        parsed = with_largest(options(**typed), MACHINE, data_dir=None, earlier=None)
        assert not parsed.largest_batch
        return parsed.batch_sizes

    return find


def test_the_replicas_of_the_largest_group_share_half_of_the_free_memory(
    found: Callable[..., tuple[int, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(batch_sizes="8,max") == (8, 400)  # 100 + 400 MiB of 2000 × 50 % ÷ 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "dpbench: --batch-sizes max: 2 takes 102 MiB"
    assert said[-1].startswith("dpbench: --batch-sizes max: 400, predicted to stay within 50 % of")
    assert found(batch_sizes="max", group_sizes="1") == (900,)


def test_group_size_1_is_tried_even_if_it_is_not_measured(
    found: Callable[..., tuple[int, ...]],
) -> None:
    typed = {"batch_sizes": "max", "implementations": "ddp"}
    assert found(**typed, group_sizes="2") == found(**typed, group_sizes="1,2")


def test_a_dataset_that_has_no_more_samples_is_the_limit(
    found: Callable[..., tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "dpbench.run.sweep.largest_batch.available_memory_bytes", lambda: 5000 * MIB
    )
    assert found(batch_sizes="max", data="digits") == (898,)
    assert "digits has no more for 2 replicas" in capsys.readouterr().err


def test_a_failure_that_is_not_of_memory_ends_the_search() -> None:
    class Failing(SyntheticLauncher):
        def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialOutcome:
            return TrialOutcome(status=Status.FAILED, reason="no such layer")

    search = Search(launcher=Failing(), trial=trial_spec(), most=8, deadline_seconds=0)
    for attempt in (search.fits, search.peak_bytes):
        with pytest.raises(UsageError, match="batch 4 failed: no such layer"):
            attempt(4)


def test_a_try_that_runs_out_of_memory_only_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    search = Search(launcher=Filling(), trial=trial_spec(), most=8, deadline_seconds=0)
    most = largest_batch.by_trying(search.fits, 10_000, lambda: False)
    assert most is not None
    assert 850 < most <= 900
    assert "dpbench: --batch-sizes max: 1024 does not fit" in capsys.readouterr().err


def test_a_sweep_that_is_resumed_keeps_the_batch_that_was_found() -> None:
    earlier = sweep_spec(batch_sizes=(8, 400))
    for typed, kept in (("8,max", (8, 400)), ("max", (8, 400)), ("16,max", (16,))):
        parsed = options(batch_sizes=typed)
        again = with_largest(parsed, MACHINE, data_dir=None, earlier=earlier)
        assert again.batch_sizes == kept


def test_the_command_that_is_kept_has_the_number() -> None:
    assert as_typed(["sweep", "--batch-sizes", "8,max", "-q"], [8, 400]) == [
        *("sweep", "--batch-sizes", "8,400", "-q")
    ]
    assert as_typed(["sweep", "--batch-size=max"], [400]) == ["sweep", "--batch-size=400"]


def test_where_it_cannot_be_looked_for_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="only dpbench sweep on one node"):
        build_sweep_spec(options(batch_sizes="max"), MACHINE)
    strong = options(batch_sizes="max", scaling="strong")
    with pytest.raises(UsageError, match="--scaling strong"):
        with_largest(strong, MACHINE, data_dir=None, earlier=None)
    assert dpbench("sweep", "--batch-sizes", "maxi") == 2


def test_a_batch_whose_trials_would_not_end_in_time_gives_way_to_a_smaller_one(
    found: Callable[..., tuple[int, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    (free,) = found(batch_sizes="max", group_sizes="1", warmup="0", steps="1000")
    capsys.readouterr()
    (bounded,) = found(
        batch_sizes="max", group_sizes="1", warmup="0", steps="1000", time_limit="2s"
    )
    assert 2 <= bounded < free
    said = capsys.readouterr().err.splitlines()[-1]
    expected = "instead, predicted from the time of a step to take 1,000 steps within 50 % of"
    assert said.startswith(f"dpbench: --batch-sizes max: {bounded} {expected} --time-limit 2")
    with pytest.raises(UsageError, match="not even the smallest batch takes 1,000 steps within"):
        found(batch_sizes="max", group_sizes="1", warmup="0", steps="1000", time_limit="0.001s")


def never() -> bool:
    return False


@settings(max_examples=60)
@given(limit=st.integers(2, 10**6), most=st.integers(2, 10**6))
def test_bisection_ends_just_below_the_limit(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(batch_size: int) -> bool:
        tried.append(batch_size)
        return batch_size <= limit

    found = by_trying(fits, most, never)
    assert found is not None
    assert found in tried
    best = min(limit, most)
    assert found <= best <= found + max(1, found // RESOLUTION)
    assert len(tried) <= 30
    assert max(tried) <= most


def test_nothing_fits_where_the_first_does_not() -> None:
    assert by_trying(lambda _: False, 100, never) is None
    assert by_predicting(lambda _: 100, 99, 100, never) is None


def test_what_fitted_stands_when_the_time_is_over() -> None:
    over = iter([False, False, True])
    assert by_trying(lambda _: True, 1000, lambda: next(over)) == 8


@settings(max_examples=60)
@given(
    base=st.integers(1, 2000),
    per_sample=st.integers(1, 2**30),
    budget=st.integers(2500, 10**5),
    most=st.integers(2, 10**6),
)
def test_on_a_line_no_batch_above_the_budget_is_measured_or_predicted(
    base: int, per_sample: int, budget: int, most: int
) -> None:
    measured: list[int] = []

    def peak(batch_size: int) -> int:
        measured.append(batch_size)
        return base * MIB + per_sample * batch_size

    found = by_predicting(peak, budget * MIB, most, never)
    if found is None:
        assert peak(measured[-1]) > budget * MIB
        assert measured[0] in (2, measured[-1])
        return
    assert found <= most
    assert peak(found) <= budget * MIB
    # Not far below it either, where samples weigh more than what equal runs differ by.
    if per_sample * measured[-2] > 2 * NOISE_BYTES and len(measured) > 2:
        assert found == most or peak(found + 1) > budget * MIB


def test_memory_that_does_not_grow_predicts_as_if_noise_were_growth() -> None:
    found = by_predicting(lambda _: 100 * MIB, 200 * MIB, 10**6, lambda: True)
    assert found == 2 + int(100 * MIB / NOISE_BYTES)


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4096 * 1024), ("3000000", 2_000_000), ("900000", 0)]
)
def test_available_memory_is_bounded_by_the_control_group(
    tmp_path: Path, limit: str, expected: int
) -> None:
    assert available_memory_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable:    4096 kB\n")
    assert available_memory_bytes(tmp_path) == 4096 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("1000000\n")
    assert available_memory_bytes(tmp_path) == expected


def test_a_batch_is_bounded_by_the_time_of_its_steps_as_the_largest_measured_one_took() -> None:
    measured = {2: 0.1, 8: 0.2}
    assert within_time(1000, measured, 2.0) == 80
    assert within_time(50, measured, 2.0) == 50
    assert within_time(50, measured, 0.001) == 0
