"""`--batch-sizes max`: what is tried, what is said, and what becomes of the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import UsageError
from dpbench.launch import agent, largest_batch
from dpbench.launch.launcher import Outcome
from dpbench.launch.machine import Machine
from dpbench.launch.synthetic import SyntheticLauncher
from dpbench.records import Status
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.largest_batch import Search, as_typed, with_largest
from dpbench.run.sweep.spec import build
from dpbench.specs import TrialSpec
from tests.builders import sweep_spec, trial_spec
from tests.cli.synthetic import dpbench
from tests.cli.typed import parsed_options
from tests.run.sweep.test_file import asked

MIB = 2**20
MACHINE = Machine(cores=2, gpus=(), cuda=None, missing_backends=())


class Filling(SyntheticLauncher):
    """100 MiB and one more a sample; above 1000 MiB memory runs out."""

    def __init__(self, *_: object, **__: object) -> None:
        self.tried: list[int] = []

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        self.tried.append(trial.batch_size)
        peak = (100 + trial.batch_size) * MIB
        if peak > 1000 * MIB:
            return Outcome(status=Status.OUT_OF_MEMORY, reason="too large")
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
        def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
            return Outcome(status=Status.FAILED, reason="no such layer")

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dpbench("sweep", "--batch-sizes", "max", "--arch", "mlp", "--dry-run") == 2
    assert "synthetic trials take no memory" in capsys.readouterr().err
    with pytest.raises(UsageError, match="only dpbench sweep on one node"):
        build(options(batch_sizes="max"), MACHINE)
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
