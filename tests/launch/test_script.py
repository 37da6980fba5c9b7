"""Ranks that run a user's training script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.rows import summarize
from dpbench.launch.script import script_environment
from dpbench.launch.trial_runner import TrialRunner
from dpbench.measure.script.watching import replaced_arguments
from dpbench.records.trial import HostLoad, Status, TrialRecord
from tests.analysis.builders import record
from tests.builders import MACHINE, script_configuration

SCRIPT = Path(__file__).with_name("training_script.py")
Run = Callable[..., TrialRecord]


def long(*values: Any) -> Any:
    """A case of `make full`: each starts interpreters that import torch."""
    return pytest.param(*values, marks=pytest.mark.full)


of_script = partial(script_configuration, SCRIPT)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    runner = TrialRunner(MACHINE, tmp_path / "logs")
    return lambda *arguments, seconds=60.0, **more: runner.run(
        of_script(*arguments, **more), 0, seconds
    )


@pytest.mark.slow
def test_a_script_is_measured_as_it_is_without_averaging_and_on_a_kept_batch(
    run: Run, tmp_path: Path
) -> None:
    outcome = run("--workers", "1", "--micro-steps", "2", "--samples", "6400")
    assert outcome.status is Status.COMPLETED, outcome.reason
    assert outcome.facts.item == "samples"
    for rank in outcome.ranks:
        assert rank.script is not None
        steps_of = {mode: window.segment_steps for mode, window in rank.windows.items()}
        assert steps_of == dict.fromkeys(("timed", "unsynced", "cached"), (5, 5))
        steps = len(rank.timed.step_seconds)
        assert rank.timed.samples == steps * 2 * 8
        assert rank.script.loader_workers == 1
        assert rank.script.forwards == rank.script.reducing_forwards == 2 * rank.script.steps
    assert kinds(outcome) == ["reductions"]
    assert not (tmp_path / "logs").exists()
    assert not [child for child in psutil.Process().children(recursive=True) if _is_script(child)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--fault raise", "rank 1 failed: ValueError: the loss is a banana (tests/launch/training"),
        ("--fault spawn", "the script starts its own ranks (torch.multiprocessing); dpbench sta"),
        long("--samples 160", "the script ended after 10 optimizer steps; it needs about 34: let"),
        long("--fault exit", "the script ended with status 7 after 8 optimizer steps"),
        long("--nonsense", "training_script.py: error: unrecognized arguments: --nonsense"),
        long("--fault leave", "the script ended its process with status 9"),
        long("--fault hang", "no result after 20 s: rank 0 was in planted (training_script.py:"),
        long("--fault no-optimizer", "before an optimizer took a step in this process"),
    ],
)
def test_a_script_that_cannot_be_measured_fails_with_one_line(
    run: Run, arguments: str, words: str
) -> None:
    outcome = run("--epochs", "1", *arguments.split(), seconds=20.0)
    assert outcome.status in (Status.FAILED, Status.TIMED_OUT)
    assert words in (outcome.reason or "")
    assert "\n" not in (outcome.reason or "")
    assert not [child for child in psutil.Process().children(recursive=True) if _is_script(child)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no-group", long("not-wrapped")])
def test_a_script_whose_ranks_do_not_train_together_is_measured_without_averaging(
    run: Run, fault: str
) -> None:
    outcome = run("--fault", fault)
    assert outcome.status is Status.COMPLETED, outcome.reason
    assert all({*rank.windows} == {"timed", "cached"} for rank in outcome.ranks)
    assert kinds(outcome) == ["never synchronized"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ("none", set()),
        ("differ,find-unused,threads", {"replicas differ", "find unused", "threads"}),
        ("same-samples", {"same samples"}),
    ],
)
def test_what_is_wrong_in_a_script_is_seen_in_its_first_run(
    run: Run, faults: str, found: set[str]
) -> None:
    assert {*kinds(run("--samples", "6400", "--fault", faults))} == found


@pytest.mark.slow
def test_a_row_replaces_arguments_and_the_wrapper_of_the_script(run: Run) -> None:
    settings = {"bucket_cap_mb": 2.0, "find_unused": "off", "data_workers": 1}
    fault = ("--fault", "find-unused", "--samples", "6400")
    for implementation in ("script", "ddp"):
        outcome = run(*fault, implementation=implementation, backend="shm", **settings)
        assert outcome.status is Status.COMPLETED, outcome.reason
        for rank in outcome.ranks:
            assert rank.script is not None
            assert (rank.script.loader_workers, rank.script.finds_unused) == (1, False)
            assert "unsynced" in rank.windows
            assert rank.script.reducing_forwards == rank.script.steps
            assert rank.script.differing_parameter is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "call", "settings"),
    [
        ("not-wrapped", "DistributedDataParallel", {"implementation": "ddp"}),
        long("not-wrapped", "DistributedDataParallel", {"bucket_cap_mb": 2.0}),
        long("no-group", "init_process_group", {"backend": "gloo"}),
    ],
)
def test_a_row_that_could_not_replace_anything_fails(
    run: Run, fault: str, call: str, settings: dict[str, Any]
) -> None:
    outcome = run("--fault", fault, **settings)
    assert outcome.status is Status.FAILED
    assert f"the script makes no {call} before its first steps" in (outcome.reason or "")


def test_only_what_a_row_sets_is_replaced() -> None:
    found = replaced_arguments(of_script(backend="gloo", find_unused="on", data_workers=0))
    loader = found.pop("DataLoader")
    assert (loader["num_workers"], loader["persistent_workers"]) == (0, False)
    assert found == {
        "init_process_group": {"backend": "gloo"},
        "DistributedDataParallel": {"find_unused_parameters": True},
    }
    assert replaced_arguments(of_script()) == {}
    assert replaced_arguments(of_script(implementation="independent")) == {}


def test_a_rank_alone_has_a_world_and_a_gpu_of_its_own() -> None:
    together, copies = of_script(), of_script(implementation="independent")
    environ = {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "4,6"}
    assert (
        script_environment(together, 1, environ, 4321).items()
        >= {
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_PORT": "4321",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            "DPBENCH": "1",
            "HOME": "/root",
        }.items()
    )
    alone = script_environment(copies, 1, environ, 4321)
    assert [alone[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")] == ["0", "1", "0"]
    assert alone["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert alone["CUDA_VISIBLE_DEVICES"] == "4,6"
    gpus = ("cuda:0", "cuda:1")
    seen = [
        script_environment(replace(settings, devices=gpus), 1, environ, 4321)[
            "CUDA_VISIBLE_DEVICES"
        ]
        for settings in (together, copies)
    ]
    assert seen == ["4,6", "6"]


def kinds(outcome: TrialRecord) -> list[str]:
    """The kinds of causes in one repetition, in which no time is blamed."""
    quiet = HostLoad(cores=2, during=0.0, stolen=0.0)
    ran = record(of_script(), outcome.ranks, host_load=quiet)
    (explanation,) = explain_rows(summarize([ran]))
    return [one.kind for one in explanation.causes]


def _is_script(process: psutil.Process) -> bool:
    return any(SCRIPT.name in word for word in process.cmdline())
