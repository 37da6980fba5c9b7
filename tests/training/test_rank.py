"""Whole trainings of two ranks: exact gradients, the same bits after a resumption, one writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.architecture import load_architecture
from dpbench.data import datasets
from dpbench.data.sharding import EpochPlan
from dpbench.errors import DpbenchError, UsageError
from dpbench.specs.training import TrainingRunOptions, TrainingSpec
from dpbench.training.checkpoint import Checkpoint, from_bytes, save_checkpoint, to_bytes
from dpbench.training.events import EndLine, EpochLine, Event, StepLine
from dpbench.training.rank import agreed_checkpoint, train_in_group
from dpbench.training.run_folder import TrainingJob, follow_log
from tests.parallel.ranks import run_ranks
from tests.training import test_evaluation, test_step
from tests.training.jobs import (
    ALONE,
    QUIET,
    checkpoint,
    ranks_here,
    stored,
    training_job,
    training_spec,
)

CPU = torch.device("cpu")
EVERYTHING = TrainingRunOptions(
    evaluation="sharded", log_interval=1, checkpoint_every=4, prefetch=2, check_sync_every=2
)
"""Stops in the middle of an epoch of 6 steps, too."""


@dataclass(frozen=True, slots=True)
class Case:
    """A training, and what is different about it."""

    spec: TrainingSpec
    run: TrainingRunOptions = QUIET
    resume_at: int | None = None
    """Train again in another folder, from the checkpoint of this step."""
    of_rank_1: dict[str, Any] = field(default_factory=dict)
    """Changes of the job of rank 1."""


Answer = EndLine | str
"""What a rank got, or the error that it raised."""


def answers(cases: dict[str, Case], folder: Path, rank: int) -> dict[str, Answer]:
    """Train all cases in one group, and their resumptions as "<name> resumed"."""
    ranks, found = ranks_here(), dict[str, Answer]()
    jobs: dict[str, TrainingJob] = {}
    for name, case in cases.items():
        changes = case.of_rank_1 if rank == 1 else {}
        jobs[name] = replace(
            TrainingJob(spec=case.spec, run=case.run, folder=folder, prepared=None), **changes
        )
        if case.resume_at is not None:
            checkpoint = folder / name / "checkpoints" / f"step-{case.resume_at:08}.pt"
            jobs[f"{name} resumed"] = replace(jobs[name], resume=str(checkpoint))
    for name, asked in jobs.items():
        here = Path("/nowhere") if rank else folder / name
        try:
            found[name] = train_in_group(replace(asked, folder=here), ranks, [CPU])
        except DpbenchError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


@dataclass(frozen=True, slots=True)
class Trained:
    """All cases of one group."""

    folder: Path
    by_rank: list[dict[str, Answer]]

    def __getitem__(self, name: str) -> EndLine:
        answer = self.by_rank[0][name]
        assert isinstance(answer, EndLine), answer
        return answer

    def events(self, name: str) -> list[Event]:
        return follow_log(self.folder / name).new()


def train_all(
    cases: dict[str, Case], folder: Path, bodies: Sequence[Callable[[int], None]] = ()
) -> Trained:
    for name, case in cases.items():
        training_job(folder / name, case.spec, case.run)
        if case.resume_at is not None:
            training_job(folder / f"{name} resumed", case.spec, case.run)
    size = max(case.spec.group_size for case in cases.values())
    works = [*bodies, partial(answers, cases, folder)]
    return Trained(folder, run_ranks(works, folder / "store", size, backend="gloo", timeout=90))


def exact(**changes: Any) -> Case:
    """Float64 and SGD, in steps of 4 and of 2 micro-steps, the last of 6 samples."""
    values = {"accumulate": 4, "epochs": 3, "gamma": 0.5, **changes}
    return Case(training_spec(**values))


def resumed(at: int, run: TrainingRunOptions = EVERYTHING, **changes: Any) -> Case:
    """With dropout and buffers."""
    return Case(training_spec("Noisy", **changes), run, resume_at=at)


CASES = {
    "exact ddp": exact(),
    "exact torch-ddp": exact(implementation="torch-ddp"),
    "exact torch-ddp-static": exact(implementation="torch-ddp-static"),
    "exact local-sgd": exact(implementation="local-sgd", accumulate=1),
    "exact ddp-sharded": exact(implementation="ddp-sharded", max_norm=0.05),
    "exact clipped": exact(max_norm=0.05),
    "exact dropped": exact(last_batch="drop"),
    "ddp": resumed(4, optimizer="adadelta", lr=1.0),
    "ddp accumulated": resumed(
        8, replace(EVERYTHING, log_interval=4), accumulate=2, epochs=4, optimizer="adamw"
    ),
    "ddp-sharded": resumed(
        8, implementation="ddp-sharded", optimizer="adamw", accumulate=2, epochs=4
    ),
    "torch-ddp": resumed(8, implementation="torch-ddp", optimizer="adam"),
    "local-sgd": resumed(4, implementation="local-sgd", sync_every=2, optimizer="adam"),
    "ddp unwatched": Case(training_spec("Noisy", optimizer="adadelta", lr=1.0)),
    "ddp by rank 0": Case(
        training_spec("Noisy", optimizer="adadelta", lr=1.0), replace(QUIET, evaluation="rank0")
    ),
    "nan": Case(training_spec("NanOnRankOne"), EVERYTHING),
    "drift": Case(training_spec("DriftsOnRankOne"), replace(QUIET, check_sync_every=3)),
    "unseen drift": Case(training_spec("DriftsOnRankOne")),
    "nan gradient": Case(training_spec("NanGradient", epochs=1), replace(QUIET, log_interval=4)),
    "other run": Case(training_spec(), of_rank_1={"run": replace(QUIET, log_interval=7)}),
    "other samples": Case(training_spec("OtherSamplesOnRankOne")),
    "slow": Case(training_spec("SlowOnRankOne", balance="speed", epochs=3), EVERYTHING, 8),
    "not slow": Case(training_spec("SlowOnRankOne", epochs=3)),
}


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("gloo")
    resumed = partial(two_ranks_go_on_from_the_same_or_not_at_all, folder / "resume")
    bodies = [*test_step.ON_TWO_RANKS, *test_evaluation.ON_TWO_RANKS, resumed]
    return train_all(CASES, folder, bodies)


def loop_by_hand(spec: TrainingSpec) -> dict[str, torch.Tensor]:
    """One process on the union of the samples of every step, without a line of ours but for
    which they are."""
    architecture = load_architecture(spec.workload.architecture)
    samples = datasets.load_splits(spec.workload, None, architecture, spec.train_samples).train
    torch.manual_seed(spec.workload.seed)
    module = architecture.build_model()
    optimizer = torch.optim.SGD(module.parameters(), lr=spec.scaled_lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=spec.gamma)
    plan = EpochPlan(spec, len(samples))
    for epoch in range(spec.epochs):
        for number in range(plan.steps_per_epoch):
            parts = [part for p in range(2) for part in plan.step(epoch, number, p)]
            union = torch.cat(parts)
            optimizer.zero_grad()
            architecture.loss(module(samples.inputs[union]), samples.targets[union]).backward()
            if spec.max_norm is not None:
                torch.nn.utils.clip_grad_norm_(module.parameters(), spec.max_norm)
            optimizer.step()
        schedule.step()
    return module.state_dict()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("exact")])
def test_every_step_is_that_of_one_process_on_the_union_of_samples(
    gloo: Trained, name: str
) -> None:
    last = gloo[name].last_checkpoint
    assert last is not None
    found = stored(gloo.folder / name, last).model
    expected = loop_by_hand(CASES[name].spec)
    torch.testing.assert_close(found, dict(expected), rtol=0, atol=1e-12)


def lines(events: Sequence[Event], kind: type[Event], after: int) -> list[dict[str, Any]]:
    """Without what a clock says."""
    timed = ("seconds", "samples_per_second", "data_wait_share")
    return [
        {name: getattr(event, name) for name in event.__slots__ if not name.endswith(timed)}
        for event in events
        if isinstance(event, kind) and event.step > after  # type: ignore[union-attr]
    ]


@pytest.mark.parametrize(
    "name", ["ddp", "ddp accumulated", "ddp-sharded", "torch-ddp", "local-sgd"]
)
def test_a_training_interrupted_in_an_epoch_ends_at_the_same_bits(gloo: Trained, name: str) -> None:
    whole, again = gloo[name], gloo[f"{name} resumed"]
    assert again.state_sha256 == whole.state_sha256
    assert again.final_loss == whole.final_loss
    assert again.score == whole.score
    at = CASES[name].resume_at
    assert at is not None
    for kind in (StepLine, EpochLine):
        expected = lines(gloo.events(name), kind, at)
        assert lines(gloo.events(f"{name} resumed"), kind, at) == expected
        assert expected
    assert 0 < again.samples < whole.samples


def test_what_is_watched_and_kept_changes_no_parameter(gloo: Trained) -> None:
    hashes = {gloo[name].state_sha256 for name in ("ddp", "ddp unwatched", "ddp by rank 0")}
    assert len(hashes) == 1
    assert gloo["ddp"].score == gloo["ddp by rank 0"].score is not None


def test_what_is_not_finite_ends_all_ranks_and_is_not_kept(gloo: Trained) -> None:
    for rank in gloo.by_rank:
        assert str(rank["nan"]).startswith(
            "TrainingFailed: the loss is nan in epoch 2, step 8, on rank 1; lower the learning rate"
        )
        assert str(rank["nan gradient"]).startswith(
            "TrainingFailed: a parameter is nan in epoch 1, step 6, on rank 0; lower the learning "
        )
    for name, kept in (
        ("nan", ["best.pt", "step-00000004.pt", "step-00000006.pt"]),
        ("nan gradient", []),
    ):
        written = (gloo.folder / name / "checkpoints").iterdir()
        assert sorted(path.name for path in written) == kept


def test_ranks_that_drift_apart_are_told_at_the_next_comparison_or_at_the_end(
    gloo: Trained,
) -> None:
    for rank in gloo.by_rank:
        for name, when in (
            ("drift", "epoch 1, step 6"),
            ("unseen drift", "at the end (--check-sync-every finds the step)"),
        ):
            first, where = str(rank[name]).splitlines()[:2]
            assert first == (
                f"TrainingFailed: {when}: the ranks do not hold the same module: 1 of 4 tensors "
                "differ from rank 0"
            )
            assert where.startswith("  parameter 'first.weight', (6, 4) torch.float32: rank 1, max")


def test_ranks_with_another_training_are_told_on_all_of_them(gloo: Trained) -> None:
    for name in ("other run", "other samples"):
        for rank in gloo.by_rank:
            assert rank[name] == (
                "UsageError: rank 1 was given another training or other samples than rank 0; give "
                "every node the same command and the same data"
            )
        assert gloo.events(name) == []


def test_a_slow_rank_gets_fewer_samples_of_the_same_gradient(gloo: Trained) -> None:
    epochs = [event for event in gloo.events("slow") if isinstance(event, EpochLine)]
    assert epochs[0].shares == ()
    for later in epochs[1:]:
        assert later.shares[0] > 0.7
        assert sum(later.shares) == pytest.approx(1.0)
    last = stored(gloo.folder / "slow", "step-00000018.pt").model
    equal = stored(gloo.folder / "not slow", "step-00000018.pt").model
    torch.testing.assert_close(last, equal, rtol=0, atol=1e-12)
    again = [event for event in gloo.events("slow resumed") if isinstance(event, EpochLine)]
    assert again[0].shares == epochs[1].shares  # those of the epoch that was interrupted


def test_dp_in_one_process_is_the_same_training(tmp_path: Path) -> None:
    changes = {"implementation": "dp", "backend": "threads", "accumulate": 3}
    exactly = training_job(tmp_path / "exact", training_spec(**changes, epochs=3))
    outcome = train_here(exactly)
    found = stored(tmp_path / "exact", outcome.last_checkpoint or "").model
    expected = loop_by_hand(replace(exactly.spec, implementation="ddp"))
    torch.testing.assert_close(found, dict(expected), rtol=0, atol=1e-12)


def train_here(asked: TrainingJob) -> EndLine:
    return train_in_group(asked, ALONE, [CPU])


def test_a_finished_training_is_evaluated_again_and_may_get_more_epochs(tmp_path: Path) -> None:
    spec = training_spec("Noisy", implementation="single", backend="none", group_size=1)
    longer = replace(spec, epochs=3)
    run = replace(QUIET, evaluation="rank0")
    whole = train_here(training_job(tmp_path / "whole", longer, run))
    first = training_job(tmp_path / "first", spec, run)
    short = train_here(first)
    nothing_left = train_here(replace(first, resume="auto"))
    assert nothing_left.samples == 0
    assert nothing_left.state_sha256 == short.state_sha256
    assert nothing_left.test_accuracy == short.test_accuracy
    assert nothing_left.final_loss == short.final_loss
    assert nothing_left.last_checkpoint == short.last_checkpoint == "step-00000024.pt"
    assert nothing_left.best_checkpoint == short.best_checkpoint == "best.pt"
    more = train_here(replace(first, spec=longer, resume="auto"))
    assert more.state_sha256 == whole.state_sha256
    assert more.samples == 46


def test_a_checkpoint_that_does_not_fit_is_a_usage_error(tmp_path: Path) -> None:
    spec = training_spec(implementation="single", backend="none", group_size=1, epochs=1)
    train_here(training_job(tmp_path / "whole", spec))
    whole = stored(tmp_path / "whole", "step-00000012.pt")
    again = training_job(tmp_path / "new", spec, resume=str(tmp_path / "foreign.pt"))
    for change, message in (
        ({"samples_sha256": "5a" * 32}, "it was trained on other samples, with hash 5a5a5a"),
        ({"random_states": [{}]}, "KeyError: 'cpu'"),
        ({"model": {}}, "RuntimeError: Error.* Missing key"),
    ):
        (tmp_path / "foreign.pt").write_bytes(to_bytes(replace(whole, **change)))
        with pytest.raises(UsageError, match=f"foreign.pt: it does not fit this trai.*{message}"):
            train_here(again)


SPEC = training_spec()


def job(folder: Path, resume: str | None = "auto", spec: TrainingSpec = SPEC) -> TrainingJob:
    return TrainingJob(
        spec=spec, run=TrainingRunOptions(), folder=folder, prepared=None, resume=resume
    )


def save(folder: Path, *checkpoints: Checkpoint) -> list[Path]:
    """Save into the checkpoints of a run folder."""
    kept = folder / "checkpoints"
    kept.mkdir(parents=True)
    return [save_checkpoint(kept, each, keep=99, best=False) for each in checkpoints]


def refusal(asked: TrainingJob) -> str:
    with pytest.raises(UsageError) as caught:
        agreed_checkpoint(asked, ALONE)
    words = str(caught.value)
    assert "\n" not in words
    return words


def test_auto_takes_the_latest_and_a_path_the_one_it_names(tmp_path: Path) -> None:
    first, latest = save(tmp_path, checkpoint(8), checkpoint(16))
    for asked, expected in (
        (job(tmp_path), (16, str(latest))),
        (job(tmp_path / "another", str(first)), (8, str(first))),
    ):
        found = agreed_checkpoint(asked, ALONE)
        assert found is not None
        assert (found.position.step, found.file) == expected
    assert agreed_checkpoint(job(tmp_path, None), ALONE) is None
    assert agreed_checkpoint(job(tmp_path / "new"), ALONE) is None
    assert not (tmp_path / "new").exists()


def test_another_training_is_refused_with_what_differs(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(8))
    workload = replace(SPEC.workload, seed=5, compile="default")
    other = replace(SPEC, batch_size=16, workload=workload, epochs=5)
    assert refusal(job(tmp_path, spec=other)) == (
        f"{path} belongs to another training: seed: 3 -> 5, compile: 'none' -> 'default', "
        "batch_size: 4 -> 16; use the options that it was made with, or train without --resume"
    )
    words = refusal(job(tmp_path, str(tmp_path / "none.pt")))
    assert words == f"cannot read {tmp_path}/none.pt: No such file or directory"


def two_ranks_go_on_from_the_same_or_not_at_all(folder: Path, rank: int) -> None:
    """The run folder of rank 1 is on another host, and does not exist here."""
    ranks, host = ranks_here(), folder / f"host{rank}"
    if rank == 0:
        save(host, checkpoint(16))
    found = agreed_checkpoint(job(host), ranks)
    assert found is not None
    path = folder / "host0" / "checkpoints" / "step-00000016.pt"
    assert ranks.gather(found.file) == [str(path)] * 2
    expected = from_bytes(path.read_bytes(), "here").model
    torch.testing.assert_close(found.model, expected, rtol=0, atol=0)
    assert not (folder / "host1").exists()
    # Only rank 0 looks for a file.
    other = path.parent if rank else folder / "none"
    assert agreed_checkpoint(job(other), ranks) is None
    bad = folder / "bad.pt"
    if rank == 0:
        bad.write_bytes(to_bytes(checkpoint(16))[:-900])
    with pytest.raises(UsageError, match="it is damaged, or no checkpoint"):
        agreed_checkpoint(job(host, str(bad)), ranks)
