"""A side of `dpbench check`: its code, and the process of its own that measures it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dpbench
from dpbench.architecture.user_errors import is_machinery
from dpbench.codec import decode, encode
from dpbench.errors import LaunchError, UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec, WorkloadSpec

WORKER = "dpbench.run.gate.check_worker"
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that would show another interpreter the packages of this one."""
END_SECONDS = 10.0
READY = "ready"
"""Line that an interpreter prints once it has imported the worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SidePlace:
    """The source of a side's code."""

    label: str
    """The name of the side in the table: "origin/main"."""
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
def start_side(place: SidePlace) -> Iterator[SideProcess]:
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
        with suppress(subprocess.TimeoutExpired):  # it has measured all, and is killed now
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
    kept = {k: v for k, v in os.environ.items() if own or k not in PYTHON_VARIABLES}
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
