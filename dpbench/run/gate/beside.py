"""`dpbench check` of the user's own change: two versions of the code, measured in turn.

Each side is a process with its own working directory and interpreter. Every trial of the candidate
has a twin of the baseline right before or after it, so that what disturbs the machine disturbs
both, and the runs are compared pass by pass.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dpbench import architecture, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK
from dpbench.analysis.metrics import METRICS
from dpbench.architecture import is_theirs
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.records.environment import git, git_bytes
from dpbench.records.trial import TrialRecord
from dpbench.run.gate.judging import (
    MOST_LOOKS,
    Gate,
    MeasuredFolder,
    Sides,
    build_sweep,
    conclude,
    parse_sweep,
)
from dpbench.run.gate.side import Prepared, SidePlace, SideProcess, interpreter_of, start_side
from dpbench.run.gate.thresholds import check_baselines_of_efficiency
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.grid import UntilSettled, plan_trials
from dpbench.specs import BASELINE, SweepSpec, TrialSpec, WorkloadSpec
from dpbench.specs.sweep import condition
from dpbench.store import SweepStore
from dpbench.temporary import temporary_folder

NOW = "the working directory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    """The side that the candidate is compared with: one of the three is given."""

    ref: str | None = None
    arch: str | None = None
    python: str | None = None

    @property
    def label(self) -> str:
        return str(self.ref or self.arch or self.python)


def check_beside(gate: Gate, other: Other, axes: Mapping[str, Any], target: MeasuredFolder) -> int:
    """Measures the code as it stands and the other version in turn, and judges pass by pass."""
    spec, _ = build_sweep(parse_sweep(axes), target)
    shape = axes.get("input_shape")
    if other.arch is not None and shape is not None and is_theirs(other.arch):
        other = replace(other, arch=architecture.with_input_shape(other.arch, shape))
    if other.ref is not None:
        _require_own_file(spec.workload)
    check_baselines_of_efficiency(gate.thresholds.tolerances, spec)
    gate.outputs.check()
    spec = replace(_without_extra_rows(gate, spec), repetitions=gate.thresholds.repetitions)
    if other.python is not None:  # another torch is another environment, which is the question
        gate = replace(gate, force=True)
    folder = target.folder("check")
    say(gate.thresholds.describe_repetitions())
    with as_exceptions(), _both(other, spec, target) as pair:
        sides = _measure(gate, pair, target, folder)
    say(f"records are in {folder} and {_baseline_folder(folder)}")
    return conclude(gate, sides, sides[0][1].records, alpha=ALPHA_OF_A_LOOK)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Version:
    """One side with what it measures."""

    process: SideProcess
    spec: SweepSpec
    found: Prepared

    def run(self, trial: TrialSpec) -> TrialRecord:
        mine = replace(trial, workload=self.spec.workload)
        record = self.process.run(mine, self.spec.time_limit_seconds)
        return replace(record, environment_id=self.found.environment.environment_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    baseline: _Version
    candidate: _Version
    other: Other


@contextmanager
def _both(other: Other, spec: SweepSpec, target: MeasuredFolder) -> Iterator[_Pair]:
    """Both versions, loaded; raises UsageError for what one of them refuses."""
    with ExitStack() as stack:
        here = SidePlace(label=NOW, directory=Path.cwd())
        place = replace(here, label=other.label)
        asked, commit = spec.workload, None
        if other.ref is not None:
            folder = stack.enter_context(temporary_folder())
            then = write_snapshot(other.ref, folder, "--against-ref")
            _require_files_then(spec.workload, then, other.ref)
            commit = then.commit[:12]
            place = replace(
                place, directory=then.working_directory, root=then.root, stands_for=then.repository
            )
            here = replace(here, stands_for=then.repository)
            say(f"--against-ref {other.ref} is commit {commit}")
            if then.submodules:
                say(f"without the files of submodules: {', '.join(then.submodules)}")
        elif other.arch is not None:
            architecture.check(other.arch)
            asked = replace(asked, architecture=other.arch)
        elif other.python is not None:
            place = replace(place, python=interpreter_of(other.python))
        largest = max(trial.global_batch_size for trial in plan_trials(spec))
        versions = []
        for where, workload, known in (
            (place, asked, commit),
            (here, spec.workload, None),
        ):
            process = stack.enter_context(start_side(where))
            found = process.prepare(replace(workload, files_sha256=None), target.data_dir, largest)
            if known is not None:  # the folder of a snapshot is no repository
                environment = replace(found.environment, git_commit=known)
                found = replace(found, environment=environment)
            versions.append(
                _Version(process=process, spec=replace(spec, workload=found.workload), found=found)
            )
        _tell_if_equal(other, *versions)
        yield _Pair(baseline=versions[0], candidate=versions[1], other=other)


def _measure(gate: Gate, pair: _Pair, target: MeasuredFolder, folder: Path) -> Sides:
    """Pass by pass, the two versions of each row next to each other."""
    command = target.measurement(pair.candidate.spec, folder).command
    before: list[TrialRecord] = []

    def unsettled(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        size = len({record.trial.repetition for record in records})
        same = [record for record in before if record.trial.repetition < size]
        judged = gate.assess(_sides(pair, same, records, folder), alpha=ALPHA_OF_A_LOOK)
        return judged.unsettled() & {record.trial.configuration for record in records}

    rounds = UntilSettled(
        pair.candidate.spec,
        unsettled,
        budget_seconds=gate.thresholds.budget_seconds,
        say=say,
        most_looks=MOST_LOOKS,
    )
    with (
        SweepStore.create(folder, pair.candidate.spec, command) as now,
        SweepStore.create(_baseline_folder(folder), pair.baseline.spec, command) as then,
    ):
        now.add_environment(pair.candidate.found.environment)
        then.add_environment(pair.baseline.found.environment)
        records: list[TrialRecord] = []
        versions = ((pair.baseline, then, before), (pair.candidate, now, records))
        while waiting := rounds(tuple(records)):
            for trial in waiting:
                turn = versions if trial.repetition % 2 == 0 else versions[::-1]
                for version, kept, measured in turn:
                    record = version.run(trial)
                    kept.append(record)
                    measured.append(record)
                if not target.quiet:
                    say(_progress(trial, before[-1], records[-1]))
    return _sides(pair, before, records, folder)


def _sides(
    pair: _Pair, before: Sequence[TrialRecord], now: Sequence[TrialRecord], folder: Path
) -> Sides:
    """Both as sides of one sweep, so that they are compared pass by pass."""

    def side(version: _Version, records: Sequence[TrialRecord]) -> Side:
        environment = version.found.environment
        differs = pair.other.arch is not None
        return Side(
            label=version.process.place.label,
            records=tuple(records),
            environments={environment.environment_id: environment},
            where={"architecture": version.spec.workload.architecture} if differs else {},
            source=str(folder),
        )

    return [(side(pair.baseline, before), side(pair.candidate, now))]


def _baseline_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-baseline")


def _progress(trial: TrialSpec, before: TrialRecord, now: TrialRecord) -> str:
    speeds = [_speed(record) for record in (before, now)]
    return f"pass {trial.repetition + 1}, {trial.label}: {speeds[0]} before, {speeds[1]} now"


def _speed(record: TrialRecord) -> str:
    from dpbench.analysis.throughput import is_measured, throughput

    if not is_measured(record):
        return record.status.words
    return f"{units.counted(round(throughput(record)), record.item.removesuffix('s'))}/s"


def _without_extra_rows(gate: Gate, spec: SweepSpec) -> SweepSpec:
    """Leaves out rows that nobody asked for, unless a metric is relative to them."""
    if any(METRICS[metric].relative for metric in gate.thresholds.tolerances):
        return spec
    rules = []
    if BASELINE not in spec.implementations:
        rules.append((condition("implementation", BASELINE),))
    if 1 not in spec.group_sizes:
        rules.append((condition("group_size", 1),))
    return replace(spec, exclude=(*spec.exclude, *rules))


def _tell_if_equal(other: Other, before: _Version, now: _Version) -> None:
    """A check of one thing against itself can only pass."""
    if other.python is not None:
        return
    one, two = ((version.spec.workload, version.found.modules) for version in (before, now))
    if one == two:
        say(f"{other.label} and {NOW} have the same files of this model: nothing has changed")


def _theirs(workload: WorkloadSpec) -> list[str]:
    names = (workload.architecture, workload.step, workload.dataset)
    return [name for name in names if name is not None and is_theirs(name)]


def _require_files_then(workload: WorkloadSpec, then: Snapshot, revision: str) -> None:
    """Raises UsageError for a file that the revision has not."""
    for name in _theirs(workload):
        path, found, _ = name.partition(".py:")
        if found and not (then.working_directory / f"{path}.py").is_file():
            raise UsageError(
                f"--against-ref {revision}: {path}.py is not in that revision; a file that is new "
                "can be compared with another one: --against-arch NAME"
            )


def _require_own_file(workload: WorkloadSpec) -> None:
    """Raises UsageError where no file of the user's can differ between two revisions."""
    theirs = _theirs(workload)
    if not theirs:
        raise UsageError(
            f"--against-ref: --arch {workload.architecture} is not a file in this "
            "repository; expected --arch model.py:factory, or a --step of your own"
        )
    if absolute := next((name for name in theirs if Path(name).is_absolute()), None):
        raise UsageError(
            f"--against-ref: got {shlex.quote(absolute)}; expected a path relative to the working "
            "directory, which the revision has too"
        )


READING_SECONDS = 120.0
"""A large repository holds gigabytes."""
LINK, SUBMODULE, EXECUTABLE = "120000", "160000", "100755"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A revision that was written out."""

    commit: str
    repository: Path
    """The root of the repository that it is of."""
    root: Path
    """The place of that root in the snapshot."""
    working_directory: Path
    """The place of this process's working directory in the snapshot."""
    submodules: tuple[str, ...] = ()
    """Paths that are empty there: the files of a submodule are stored in another repository."""


def repository_root(option: str) -> Path:
    """The root of the repository that holds the working directory; UsageError without one."""
    try:
        return Path(git("rev-parse", "--show-toplevel"))
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            f"{option}: {Path.cwd()} is in no git repository; run it where the model's file is kept"
        ) from None


def write_snapshot(revision: str, folder: Path, option: str) -> Snapshot:
    """Writes all files of `revision` into `folder`, which is empty.

    Raises UsageError for a revision that there is not, and for one without this directory.
    """
    root = repository_root(option)
    if not revision or revision.startswith("-"):
        raise UsageError(
            f"{option} {shlex.quote(revision)}: expected a revision of git's, as origin/main"
        )
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except subprocess.SubprocessError:
        raise UsageError(
            f"{option} {revision}: git knows no such revision in {root}; fetch it first (in a "
            "workflow: actions/checkout with fetch-depth: 0)"
        ) from None
    submodules = []
    for entry in _entries(commit, root):
        if entry.mode == SUBMODULE:
            submodules.append(entry.name)
        else:
            _write(entry, folder)
    here = folder / Path.cwd().resolve().relative_to(root.resolve())
    if not here.is_dir():
        raise UsageError(f"{option} {revision}: that revision has no folder {Path.cwd()}")
    return Snapshot(
        commit=commit,
        repository=root.resolve(),
        root=folder,
        working_directory=here,
        submodules=tuple(submodules),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    name: str
    content: bytes


def _entries(commit: str, root: Path) -> Iterator[_Entry]:
    """All files of a commit, a symbolic link with its target as content; submodules without."""
    listed = git_bytes("ls-tree", "-r", "-z", "--full-tree", commit)
    rows = [row.partition(b"\t") for row in listed.split(b"\0") if row]
    found = [(*head.decode().split(" ")[:3], os.fsdecode(name)) for head, _, name in rows]
    for mode, _, _, name in found:
        if mode == SUBMODULE:
            yield _Entry(mode, name, b"")
    blobs = [(mode, object_id, name) for mode, _, object_id, name in found if mode != SUBMODULE]
    asked = "".join(f"{object_id}\n" for _, object_id, _ in blobs)
    contents = git_bytes("cat-file", "--batch", stdin=asked.encode(), seconds=READING_SECONDS)
    place = 0
    for mode, _, name in blobs:
        end = contents.index(b"\n", place)
        size = int(contents[place:end].split(b" ")[2])
        yield _Entry(mode, name, contents[end + 1 : end + 1 + size])
        place = end + 1 + size + 1


def _write(entry: _Entry, folder: Path) -> None:
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise UsageError(f"{entry.name}: the revision has a file outside of its repository")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == LINK:
        path.symlink_to(os.fsdecode(entry.content))
        return
    path.write_bytes(entry.content)
    if entry.mode == EXECUTABLE:
        path.chmod(0o755)
