"""A side of a `dpbench check` in a process of its own: how it is asked, and how it answers.

`python -m dpbench.run.gate.check_worker` reads requests from stdin and answers each on stdout, a
line of JSON each, until stdin ends. It imports the user's code from its own working directory and
with its own interpreter, so that two sides may have two versions of a file, of torch or of dpbench.

    {"prepare": {"workload": {…}, "data_dir": null, "largest_batch": 128}}
        -> {"workload": {…}, "environment": {…}, "files": ["/path/model.py"],
            "modules": {"/path/layers.py": "<SHA-256>"}, "version": "0.1.0"}
    {"run": {"trial": {…}, "limit_seconds": 300}}  ->  {"record": {…}}
    whatever cannot be done                         ->  {"error": "why"}

Specifications, records and environments have the form of a results folder (docs/schema).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dpbench
from dpbench.architecture import make_importable
from dpbench.architecture.sources import own_files
from dpbench.architecture.user_errors import is_machinery
from dpbench.codec import decode, encode
from dpbench.data.registry import prepare
from dpbench.errors import DataError, DpbenchError, UsageError
from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.machine import inspect_machine
from dpbench.run.gate.thresholds import as_it_is_now
from dpbench.run.sweep.grid import run_trials
from dpbench.run.this_machine import environment_here
from dpbench.specs import TrialSpec, WorkloadSpec
from dpbench.temporary import temporary_folder


class Worker:
    """Answers the requests of one check."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._machine = inspect_machine()
        self._environment = environment_here(self._machine)
        self._launcher: ElasticLauncher | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; an error of the user's is an answer too."""
        try:
            if "prepare" in request:
                return self._prepare(**request["prepare"])
            if "run" in request:
                return self._run(**request["run"])
            raise UsageError(f"expected prepare or run, got {', '.join(request)}")
        except DpbenchError as error:
            return {"error": str(error)}

    def _prepare(
        self, workload: dict[str, Any], data_dir: str | None, largest_batch: int
    ) -> dict[str, Any]:
        asked = decode(WorkloadSpec, workload)
        folder = None if data_dir is None else Path(data_dir)
        make_importable(asked.architecture, asked.step, asked.dataset)
        now = as_it_is_now(asked, folder)
        data = prepare(
            now.dataset, data_dir=folder, cache=self._scratch, architecture=now.architecture
        )
        if data.samples is not None and largest_batch > data.samples:
            raise DataError(
                f"a global batch of {largest_batch} is more than the {data.samples} samples of "
                f"{now.dataset}; take a smaller batch, or --data synthetic"
            )
        self._launcher = ElasticLauncher(self._machine, data.folder, self._scratch / "logs")
        names = (now.architecture, now.step, now.dataset)
        files = [str(path) for name in names if name for path in _files(name)]
        return {
            "workload": encode(now),
            "environment": encode(self._environment),
            "files": files,
            "modules": _modules(),
            "version": dpbench.__version__,  # asked for by the check of an older dpbench
        }

    def _run(self, trial: dict[str, Any], limit_seconds: float) -> dict[str, Any]:
        if self._launcher is None:
            raise UsageError("expected prepare before run")
        (record,) = run_trials(
            [decode(TrialSpec, trial)],
            self._launcher,
            environment_id=self._environment.environment_id,
            time_limit_seconds=limit_seconds,
        )
        return {"record": encode(record)}


def _files(name: str) -> list[Path]:
    """The user's files behind a name; none behind that of a shipped dataset."""
    try:
        return [path.resolve() for path in own_files(name).values()]
    except UsageError:
        return []


def _modules() -> dict[str, str]:
    """The files of all modules that are loaded and no part of an installed package, with their
    SHA-256: those of the user's code, however they were found."""
    named = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    paths = {Path(name).resolve() for name in named if name is not None}
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file() and not is_machinery(path)
    }


@contextmanager
def _own_stdout() -> Iterator[int]:
    """The stdout that answers go to; what code of the user's prints goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        yield answers
    finally:
        os.close(answers)


def main() -> None:
    with _own_stdout() as answers, temporary_folder() as scratch:
        worker = Worker(scratch)
        for line in sys.stdin:
            answer = json.dumps(worker.answer(json.loads(line))) + "\n"
            os.write(answers, answer.encode())


if __name__ == "__main__":
    main()
