"""The run folder of a training, new or resumed: --name, --runs-dir and --resume."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.architecture import folder_name
from dpbench.codec import differing_fields
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.train import TrainOptions
from dpbench.run.results import results_folder
from dpbench.specs.training import RESUME_LATEST, TrainingSpec
from dpbench.training.run_folder import RUN_FILE, RunFolder, require_new_run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlace:
    """The run folder of a training."""

    path: Path
    existing: RunFolder | None = None
    """The run to go on with; None where the folder is to be made."""
    resume: str | None = None
    """See TrainingJob.resume."""


def choose_run_folder(
    spec: TrainingSpec, *, name: str | None, runs_dir: Path, resume: str | None
) -> RunPlace:
    """Choose the run folder, without making it; says if --resume finds nothing to go on with.

    Raises UsageError for another training than the one to go on with, StoreError for a folder that
    is there already.
    """
    folder = results_folder(runs_dir, name, otherwise=folder_name(spec.workload.architecture))
    if resume == RESUME_LATEST:
        if name is None:
            raise UsageError(f"--resume {RESUME_LATEST} needs --name: the run to go on with")
        if os.path.lexists(folder / RUN_FILE):
            return _go_on(spec, folder)
        say(f"--resume {RESUME_LATEST}: no {folder} yet; starts a new run")
        resume = None
    checkpoint = None if resume is None else _named(resume, runs_dir)
    if checkpoint is not None and checkpoint.is_dir():
        if name is not None:
            raise UsageError(
                f"--resume {resume} goes on in that folder; leave --name out, or give a checkpoint "
                "file to begin another run from"
            )
        return _go_on(spec, checkpoint)
    require_new_run(folder)
    return RunPlace(path=folder, resume=str(checkpoint.absolute()) if checkpoint else None)


def _named(resume: str, runs_dir: Path) -> Path:
    """The run folder or checkpoint that --resume names."""
    path = next((one for one in (Path(resume), runs_dir / resume) if one.exists()), None)
    if not resume or path is None:
        raise UsageError(
            f"--resume {resume}: no run or checkpoint of that name, here or in {runs_dir}; "
            "expected a run folder, a checkpoint, or auto"
        )
    return path


def _go_on(spec: TrainingSpec, path: Path) -> RunPlace:
    """The run at a path; raises UsageError for another training: only the number of epochs may
    have grown."""
    run = RunFolder.open(path)
    theirs = run.header.spec
    if spec.epochs > theirs.epochs:
        theirs = replace(theirs, epochs=spec.epochs)
    if differences := differing_fields(spec, theirs.with_files_of(spec)):
        raise UsageError(
            f"--resume: {run.path} holds another training ({'; '.join(differences)}); "
            f"it was started with: {shlex.join(['dpbench', *run.header.starts[0].command])}"
        )
    return RunPlace(path=path, existing=run, resume=RESUME_LATEST)


def resume_words(options: TrainOptions, run: Path) -> str:
    """The command that goes on with a run of these options."""
    again = options.model_copy(update={"resume": str(run), "name": None})
    return shlex.join(["dpbench", "train", *again.words()])
