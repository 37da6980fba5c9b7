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
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dpbench
from dpbench.architecture import make_importable
from dpbench.architecture.sources import own_files
from dpbench.architecture.user_errors import is_machinery
from dpbench.codec import decode, encode
from dpbench.data.registry import prepare
from dpbench.errors import DataError, DpbenchError, LaunchError, UsageError
from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.machine import inspect_machine
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.run.gate.thresholds import as_it_is_now
from dpbench.run.sweep.grid import run
from dpbench.run.this_machine import here
from dpbench.specs import TrialSpec, WorkloadSpec
from dpbench.temporary import temporary_folder

WORKER = "dpbench.run.gate.check_worker"
OF_ANOTHER_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that would show another interpreter the packages of this one."""
END_SECONDS = 10.0
READY = "ready"
"""Line that an interpreter prints once it has imported the worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SidePlace:
    """The source of a side's code."""

    label: str
    """How the table calls it: "origin/main"."""
    directory: Path
    """The working directory, where files and modules of the user's are looked for."""
    python: str = sys.executable
    root: Path | None = None
    """The folder that all of the user's files must come from; None for wherever they are."""
    stands_for: Path | None = None
    """The repository whose files `root` holds as they were at a revision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The result of loading a side's code."""

    workload: WorkloadSpec
    environment: Environment
    modules: Mapping[str, str]
    """The files of the user's modules that were loaded, relative to the root of the repository
    where they lie in it, with their SHA-256."""


def interpreter_of(place: str) -> str:
    """The interpreter of a virtual environment, or the file itself; it has dpbench.

    Raises UsageError for a path without one, and for one without dpbench.
    """
    option = f"--against-python {place}"
    path = Path(place)
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(
            f"{option}: expected a virtual environment or an interpreter; {python} is none"
        )
    tried = subprocess.run(
        [str(python), "-c", f"import {WORKER}; print({READY!r})"],
        env=_environ(str(python)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0 and READY in tried.stdout.splitlines():
        return str(python)
    if tried.returncode == 0:
        raise UsageError(f"{option}: expected an interpreter of Python; {python} is none")
    last = (tried.stderr.strip().splitlines() or ["it says nothing"])[-1]
    if "No module named 'dpbench'" in last:
        raise UsageError(f"{option}: it has no dpbench; {python} -m pip install dpbench")
    raise UsageError(
        f"{option}: its dpbench cannot measure for this one ({last}); upgrade it there"
    )


class SideProcess:
    """A worker that has started; see `check_worker` for what is said."""

    def __init__(self, place: SidePlace, process: subprocess.Popen[str]) -> None:
        self.place = place
        self._process = process

    def prepare(
        self, workload: WorkloadSpec, data_dir: Path | None, largest_batch: int
    ) -> Prepared:
        """Loads the user's code there; raises UsageError for what cannot be loaded."""
        told = self._ask(
            prepare={
                "workload": encode(workload),
                "data_dir": None if data_dir is None else str(data_dir.resolve()),
                "largest_batch": largest_batch,
            }
        )
        _require_then(self.place, told["files"], told.get("modules", {}))
        return Prepared(
            workload=decode(WorkloadSpec, told["workload"]),
            environment=decode(Environment, told["environment"]),
            modules=_relative(told.get("modules", {}), self.place.root or self.place.stands_for),
        )

    def run(self, trial: TrialSpec, limit_seconds: float) -> TrialRecord:
        told = self._ask(run={"trial": encode(trial), "limit_seconds": limit_seconds})
        return decode(TrialRecord, told["record"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:  # it has ended
            line = ""
        if not line:
            status = self._process.wait()
            raise LaunchError(f"{self.place.label}: the process that measures it ended ({status})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UsageError(f"{self.place.label}: {answer['error']}")
        return answer


@contextmanager
def started(place: SidePlace) -> Iterator[SideProcess]:
    """The process of a side; it ends with the block, and its ranks with it."""
    process = subprocess.Popen(
        [place.python, "-m", WORKER],
        cwd=place.directory,
        env=_environ(place.python) | _paths_then(place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is this process's to answer
    )
    try:
        yield SideProcess(place, process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(END_SECONDS)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _environ(python: str) -> dict[str, str]:
    """No module of the working directory is to take the place of an installed one."""
    own = python == sys.executable
    kept = {k: v for k, v in os.environ.items() if own or k not in OF_ANOTHER_PYTHON}
    return {**kept, "PYTHONSAFEPATH": "1"}


def _require_then(place: SidePlace, files: Sequence[str], modules: Iterable[str]) -> None:
    """Raises UsageError for a file of the user's that is not the revision's."""
    if place.root is None or place.stands_for is None:
        return
    then = place.root.resolve()
    if outside := next((file for file in files if not Path(file).is_relative_to(then)), None):
        raise UsageError(
            f"{place.label}: {outside} is imported from outside of that revision, as an installed "
            "package is; name the file itself: --arch path/to/model.py:factory"
        )
    for file in modules:
        if Path(file).is_relative_to(place.stands_for) and not Path(file).is_relative_to(then):
            raise UsageError(
                f"{place.label}: {file} is imported from the working tree, so that it is not of "
                "that revision; expected its package in a folder on PYTHONPATH, and no other path "
                "to it"
            )


def _relative(modules: Mapping[str, str], root: Path | None) -> dict[str, str]:
    if root is None:
        return dict(modules)
    top = root.resolve()
    return {
        str(Path(file).relative_to(top)) if Path(file).is_relative_to(top) else file: sha256
        for file, sha256 in modules.items()
    }


def _paths_then(place: SidePlace) -> dict[str, str]:
    """PYTHONPATH with the folders of the repository as they were at the revision.

    A package that was installed with `pip install --editable` is found in the working tree, by a
    line of a .pth file; PYTHONPATH comes before it.
    """
    if place.root is None or place.stands_for is None:
        return {}
    asked = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    found = [entry for entry in sys.path if entry and Path(entry).resolve() != Path.cwd()]
    paths = []
    for entry in (*asked, *found):
        path = Path(entry).resolve()
        theirs = path.is_relative_to(place.stands_for) and path != Path(dpbench.__file__).parents[1]
        if not theirs or is_machinery(path / "module.py"):
            paths += [entry] if entry in asked else []
        elif (then := place.root / path.relative_to(place.stands_for)).is_dir():
            paths.append(str(then))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


class Worker:
    """Answers the requests of one check."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._machine = inspect_machine()
        self._environment = here(self._machine, synthetic=False)
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
        (record,) = run(
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
