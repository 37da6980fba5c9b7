"""Files of a training, and where it resumes: --name, --runs-dir and --resume."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.architecture import folder_name, is_theirs
from dpbench.codec import differing_fields
from dpbench.errors import StoreError, UsageError
from dpbench.messages import say, warn
from dpbench.run.results import new_folder, results_folder
from dpbench.specs.training import RESUME_LATEST, TrainingSpec
from dpbench.training.run_folder import CHECKPOINTS, RUN_FILE, RunFolder, require_free

OPTIONS_OF_FIELDS = {
    "architecture": "--arch",
    "dataset": "--data",
    "optimizer": "--optimizer",
    "dtype": "--dtype",
    "compile": "--compile",
    "learning_rate": "--lr",
    "learning_rate_rule": "--lr-scaling",
    "seed": "--seed",
    "implementation": "--implementation",
    "backend": "--backend",
    "group_size": "--gpus",
    "devices": "--gpus",
    "batch_size": "--batch-size",
    "threads_per_replica": "--threads",
    "epochs": "--epochs",
    "gamma": "--gamma",
    "warmup_steps": "--lr-warmup",
    "accumulation_steps": "--accumulate",
    "last_window": "--last-window",
    "max_norm": "--max-norm",
    "sync_every": "--sync-every",
    "bucket_cap_mb": "--bucket-cap-mb",
    "balance": "--balance",
    "train_samples": "--limit-train",
}
"""The option that decides a field of a TrainingSpec, as messages name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlace:
    """The run folder of a training."""

    path: Path
    existing: RunFolder | None = None
    """The run to go on with; None where the folder is to be made."""
    resume: str | None = None
    """See TrainingJob.resume."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumedRun:
    """The run or checkpoint that --resume names; at least one of both."""

    run: RunFolder | None = None
    checkpoint: Path | None = None
    """A file; None for the latest of the run."""


def resumed_run(resume: str | None, runs_dir: Path) -> ResumedRun | None:
    """None unless --resume names a run or a checkpoint.

    Raises UsageError where there is nothing of that name, StoreError for a damaged run.
    """
    if resume is None or resume == RESUME_LATEST:
        return None
    path = next((one for one in (Path(resume), runs_dir / resume) if one.exists()), None)
    if not resume or path is None:
        raise UsageError(
            f"--resume {resume}: no run or checkpoint of that name, here or in {runs_dir}; "
            "expected a run folder, a checkpoint, or auto"
        )
    if path.is_dir():
        return ResumedRun(run=RunFolder.open(path))
    around = path.parent if path.parent.name else path.absolute().parent
    is_of_run = around.name == CHECKPOINTS and os.path.lexists(around.parent / RUN_FILE)
    return ResumedRun(run=RunFolder.open(around.parent) if is_of_run else None, checkpoint=path)


def choose_run_folder(
    spec: TrainingSpec, *, name: str | None, runs_dir: Path, resume: str | None
) -> RunPlace:
    """Decides, and says what it decided for --resume; makes nothing.

    Raises UsageError for another training than the one to go on with, StoreError for a folder that
    is there already.
    """
    arch, is_named = folder_name(spec.workload.architecture), name is not None
    folder = results_folder(runs_dir, name, otherwise=arch)
    if resume == RESUME_LATEST:
        return _latest(spec, folder, runs_dir, named=is_named)
    named = resumed_run(resume, runs_dir)
    if named is None:
        return RunPlace(path=new_folder(folder, named=is_named, require_free=require_free))
    start = RESUME_LATEST if named.checkpoint is None else str(named.checkpoint.absolute())
    if named.run is None or (is_named and named.checkpoint is not None):
        return RunPlace(
            path=new_folder(folder, named=is_named, require_free=require_free), resume=start
        )
    if is_named:
        raise UsageError(
            f"--resume {resume} goes on in that folder; leave --name out, or give a checkpoint "
            "file to begin another run from"
        )
    _check_same(spec, named.run)
    return RunPlace(path=named.run.path, existing=named.run, resume=start)


def resume_words(run: RunFolder) -> str:
    """The command that goes on with a run."""
    arch = run.header.spec.workload.architecture
    consent = ["--arch", arch] if is_theirs(arch) else []
    return shlex.join(["dpbench", "train", "--resume", str(run.path), *consent])


def _latest(spec: TrainingSpec, folder: Path, runs_dir: Path, *, named: bool) -> RunPlace:
    if named and os.path.lexists(folder / RUN_FILE):
        run = RunFolder.open(folder)
        _check_same(spec, run)
        return RunPlace(path=folder, existing=run, resume=RESUME_LATEST)
    runs = () if named else _newest_first(runs_dir)
    run_of_spec = next((run for run in runs if not _differences(spec, run)), None)
    if run_of_spec is not None:
        found = run_of_spec.path
        say(f"--resume {RESUME_LATEST}: goes on with {found}, the latest run of this training")
        return RunPlace(path=run_of_spec.path, existing=run_of_spec, resume=RESUME_LATEST)
    place = new_folder(folder, named=named, require_free=require_free)
    missing = f"no {folder}" if named else f"no run of this training in {runs_dir}"
    say(f"--resume {RESUME_LATEST}: {missing} yet; starts a new run")
    return RunPlace(path=place)


def _newest_first(runs_dir: Path) -> Iterator[RunFolder]:
    files = sorted(runs_dir.glob(f"*/{RUN_FILE}"), key=lambda file: -file.lstat().st_mtime)
    for file in files:
        try:
            yield RunFolder.open(file.parent)
        except StoreError as error:
            warn(f"--resume {RESUME_LATEST}: left out {file.parent}: {error}")


def _check_same(spec: TrainingSpec, run: RunFolder) -> None:
    if differences := _differences(spec, run):
        raise UsageError(
            f"--resume: {run.path} holds another training ({'; '.join(differences)}); "
            f"to go on with it: {resume_words(run)}"
        )


def _differences(spec: TrainingSpec, run: RunFolder) -> list[str]:
    """The differences, except for the number of epochs, which may grow, and the content of the
    user's files."""
    theirs = run.header.spec
    if spec.epochs > theirs.epochs:
        theirs = replace(theirs, epochs=spec.epochs)
    return differing_fields(spec, theirs.with_files_of(spec), OPTIONS_OF_FIELDS)
