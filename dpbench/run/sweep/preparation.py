"""Prepares a sweep from checked options: its folder, its plan, and what is stored of it.

The command line and `dpbench.sweep` both go through here.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench import store, units
from dpbench.architecture import LONGEST_FOLDER_NAME, folder_name
from dpbench.codec import differing_fields
from dpbench.data.user_code import change_words
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import say, warn
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.plan import Planned
from dpbench.run.option_layers import has_option
from dpbench.run.results import new_folder, results_folder
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.grid import Rounds, UntilSettled, all_trials, plan_trials, trial_count
from dpbench.run.sweep.measuring import (
    Measurement,
    estimate_seconds,
    lasting,
    launcher_for,
    measure,
)
from dpbench.run.sweep.options import RETRIED, SweepOptions
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import machine_here
from dpbench.specs import AXES, KEEP, SweepSpec, TrialSpec
from dpbench.specs.settings import AUTO, options_by_field
from dpbench.specs.trial import FEWEST_PRECISE_STEPS
from dpbench.store import StoredSweep
from dpbench.temporary import temporary_folder

if TYPE_CHECKING:
    from dpbench.launch.nodes.node import NodeRequest
    from dpbench.launch.nodes.team import Team

FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)
"""Statuses with which a sweep ends with exit status 1."""
RESUMABLE = "sweep"
"""The command that has --resume; others make folders of the same form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """A sweep that is asked for, and where its records go."""

    parsed: ParsedOptions
    command: Sequence[str] = field(default_factory=lambda: sys.argv[1:])
    """The command line after "dpbench", or an equivalent one."""
    embedded: bool = False
    """Asked for by somebody's own program, whose signals are not touched."""

    @property
    def options(self) -> SweepOptions:
        return self.parsed.options


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSweep:
    """A sweep that this machine can measure."""

    measurement: Measurement
    machine: Machine
    earlier: StoredSweep | None
    """The sweep that --resume found."""

    def measure(self) -> StoredSweep:
        """Runs what is not stored yet; raises Interrupted, with what was, when a signal ends it."""
        spec = self.measurement.spec
        if self.earlier is not None:
            _tell_what_is_stored(spec, self.earlier, self.measurement.retry)
        return measure(self.measurement, self.machine, _rounds(spec, self.earlier))


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlace:
    """The place of a sweep: its folder with its present content, and this machine."""

    folder: Path
    earlier: StoredSweep | None
    machine: Machine


def find_place(request: SweepRequest) -> SweepPlace:
    """Looks at the folder and the machine; raises StoreError for a folder that is there already, or
    for none to resume."""
    retried(request.options)  # before anything is looked at
    folder = _folder(request)
    return SweepPlace(
        folder=folder,
        earlier=store.load(folder) if request.options.resume else None,
        machine=machine_here(),
    )


def prepare(
    request: SweepRequest,
    place: SweepPlace,
    *,
    team: Team | None = None,
) -> PreparedSweep:
    """Says the notes that the user must see; with a `team` the sweep is over its nodes.

    Raises UsageError for what the machines cannot do or --resume must not.
    """
    folder, earlier, machine = place.folder, place.earlier, place.machine
    hosts = () if team is None else team.nodes
    if team is None:
        request = _with_largest_batch(request, place)
    spec, notes = build_sweep_spec(
        request.parsed, machine, hosts, data_dir=request.options.data_dir
    )
    if earlier is not None:
        spec, more_notes = _as_begun(spec, earlier, request)
        notes = (*notes, *more_notes)
    _check_resumable(earlier, spec)
    say(*notes)
    measurement = Measurement(
        spec=spec,
        folder=folder,
        command=request.command,
        data_dir=request.options.data_dir,
        quiet=request.options.quiet,
        resumed=request.options.resume,
        retry=retried(request.options),
        stop_after_failure=request.options.stop_after_failure,
        to_finish=how_to_finish(request, folder, team),
        embedded=request.embedded,
        team=team,
    )
    return PreparedSweep(measurement=measurement, machine=machine, earlier=earlier)


def _with_largest_batch(request: SweepRequest, place: SweepPlace) -> SweepRequest:
    if not request.parsed.largest_batch:
        return request
    from dpbench.run.sweep.largest_batch import as_typed, with_largest

    earlier = None if place.earlier is None else place.earlier.spec
    parsed = with_largest(
        request.parsed, place.machine, data_dir=request.options.data_dir, earlier=earlier
    )
    command = as_typed(request.command, parsed.batch_sizes)
    return replace(request, parsed=parsed, command=command)


def _folder(request: SweepRequest) -> Path:
    if request.options.resume and request.options.name is None:
        raise UsageError("--resume needs the --name of the sweep to finish")
    named = "-".join(map(folder_name, request.options.arch))[:LONGEST_FOLDER_NAME]
    folder = results_folder(request.options.results_dir, request.options.name, otherwise=named)
    if request.options.resume:
        return folder
    named_by_user = request.options.name is not None
    return new_folder(folder, named=named_by_user, require_free=store.require_free)


def _as_begun(
    spec: SweepSpec, earlier: StoredSweep, request: SweepRequest
) -> tuple[SweepSpec, list[str]]:
    """The sweep with the defaults of the version that began it, where nothing else is typed; and
    what to say of them."""
    begun, notes = earlier.spec, []
    option = "--allocator"
    typed = has_option(request.command, option)
    if begun.allocator is None and (spec.allocator == KEEP or (spec.allocator and not typed)):
        spec = replace(spec, allocator=None)
        notes.append(
            f"{option} {KEEP}: the stored trials are older than the choice and kept memory"
        )
    if request.options.repetitions is AUTO and begun.repetitions != spec.repetitions:
        spec = replace(spec, repetitions=begun.repetitions)
        notes.append(f"--repetitions {begun.repetitions}, as this sweep was begun")
    return spec, notes


def _check_resumable(earlier: StoredSweep | None, spec: SweepSpec) -> None:
    if earlier is None:
        return
    warn(*earlier.warnings)
    if differences := _differences(_of_the_files_of(earlier.spec, spec), earlier.spec):
        raise UsageError(
            f"--resume: {earlier.folder} holds another sweep ({'; '.join(differences)}); "
            f"{remedy(earlier.command, earlier.folder)}"
        )
    for before, now in zip(earlier.spec.workloads, spec.workloads, strict=True):
        if before.files_sha256 != now.files_sha256:
            raise UsageError(
                f"--resume: {change_words(before, now, f'since {earlier.folder} was begun')}; its "
                "trials would be of two things; expected the files as they were, or a new --name"
            )


def _differences(spec: SweepSpec, earlier: SweepSpec) -> list[str]:
    """Lists "--batch-sizes: 32 -> 64" for everything that an option decides, and fields by name."""
    values = [
        (axis.option, axis.text(earlier.values_of(name)), axis.text(spec.values_of(name)))
        for name, axis in AXES.items()
    ]
    words = [f"{option}: {was or 'not set'} -> {now}" for option, was, now in values if was != now]
    # What follows from the values of the settings would say the same again.
    follows = ("variants", "compared", "more_workloads") if words else ()
    said = [name for name in (*AXES, *follows) if hasattr(spec, name)]
    of_workload = [name for name in AXES if hasattr(spec.workload, name)]
    rest = _with(spec, earlier, said)
    rest = replace(rest, workload=_with(spec.workload, earlier.workload, of_workload))
    return [*words, *differing_fields(rest, earlier, options_by_field(SweepOptions))]


def _with(spec: Any, other: Any, names: Iterable[str]) -> Any:
    """A specification with these fields of the other."""
    return replace(spec, **{name: getattr(other, name) for name in names})


def _of_the_files_of(earlier: SweepSpec, spec: SweepSpec) -> SweepSpec:
    """The sweep as if the user's files had not changed, of which there is more to say."""
    hashes = {one.architecture: one.files_sha256 for one in earlier.workloads}
    return spec.with_workloads(
        [
            replace(one, files_sha256=hashes.get(one.architecture, one.files_sha256))
            for one in spec.workloads
        ]
    )


def _rounds(spec: SweepSpec, earlier: StoredSweep | None) -> Rounds:
    if spec.precision is None or spec.budget_seconds is None:
        return all_trials(spec)
    from dpbench.analysis.precision import too_wide

    precision = spec.precision
    return UntilSettled(
        spec,
        lambda records: too_wide(records, precision),
        budget_seconds=spec.budget_seconds,
        say=say,
        spent_seconds=sum(record.duration_seconds for record in earlier.records) if earlier else 0,
    )


def retried(options: SweepOptions) -> frozenset[Status]:
    """The statuses that --retry names; raises UsageError without --resume."""
    if options.retry and not options.resume:
        raise UsageError("--retry goes with --resume: nothing is stored of a new sweep")
    return frozenset(RETRIED[name] for name in options.retry or ())


def _tell_what_is_stored(spec: SweepSpec, earlier: StoredSweep, retry: frozenset[Status]) -> None:
    kept = {record.trial.trial_id for record in lasting(earlier.records, retry)}
    stored = len(kept)
    again = len({record.trial.trial_id for record in lasting(earlier.records)} - kept)
    if again:
        say(f"--retry: {units.counted(again, 'stored trial')} will be measured again")
    if not stored:
        return
    if spec.precision is not None:  # nothing tells how many trials there will be
        say(f"resuming with {units.counted(stored, 'stored trial')}")
    else:
        say(f"resuming: {units.stored(stored, trial_count(spec))}")


def how_to_finish(request: SweepRequest, folder: Path, team: Team | None) -> str:
    """The command, and where it is to be typed."""
    where = ""
    if team is not None:
        where = "on every node, with its own --node-rank: "
        if team.request.token_is_new:
            where = "on node 0, which prints the command for the others: "
    return f"{where}{resume_command(request.command, folder)}"


def remedy(command: Sequence[str], folder: Path) -> str:
    """What to do about a folder that cannot be resumed as it was asked, and that `command` made."""
    if next(iter(command), None) == RESUMABLE:
        return f"to finish it: {resume_command(command, folder)}"
    return "only dpbench sweep can be resumed, and another command made it; choose another --name"


def resume_command(command: Sequence[str], folder: Path) -> str:
    """The command that finishes the sweep that `command` started in `folder`."""
    if next(iter(command), None) != RESUMABLE:
        return f"the command of {folder}, which is not known, with --resume"
    words = [*command]
    if not has_option(words, "--name"):
        words += ["--name", folder.name]
    if "--resume" not in words:
        words.append("--resume")
    return f"dpbench {shlex.join(words)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """The plan of a sweep."""

    rows: tuple[Planned[TrialSpec], ...]
    """A row per configuration, in the order of their first run."""
    summary: str


def measure_sweep(request: SweepRequest, nodes: NodeRequest | None) -> StoredSweep:
    """Runs the sweep; raises Interrupted, with what was stored, when a signal ends it."""
    if nodes is not None:
        from dpbench.run.sweep.several_nodes import lead_sweep

        return lead_sweep(request, nodes)
    return prepare(request, find_place(request)).measure()


def plan_sweep(request: SweepRequest, nodes: NodeRequest | None) -> SweepPlan:
    """Says what the sweep would measure and how long that may take; nothing is stored."""
    if nodes is not None:
        from dpbench.run.sweep.several_nodes import prepare_for_nodes

        return _planned(prepare_for_nodes(request, nodes))
    return _planned(prepare(request, find_place(request)))


def _planned(prepared: PreparedSweep) -> SweepPlan:
    spec = prepared.measurement.spec
    trials = plan_trials(spec)
    with (
        temporary_folder() as logs,
        launcher_for(prepared.measurement, prepared.machine, logs) as launcher,
    ):
        configurations = dict.fromkeys(trial.configuration for trial in trials)
        reasons = {trial: launcher.unusable_reason(trial) for trial in configurations}
        runs = [trial for trial in trials if not reasons[trial.configuration]]
        threads = [trial.threads_per_replica for trial in trials]
        summary = (
            f"{units.counted(len(runs), 'trial')} of {_steps(spec, trials)} steps, "
            f"{units.any_of(threads, 'thread')} per replica; "
            f"{estimate_seconds(runs, launcher)}{_growth(spec)}. Nothing was stored."
        )
    rows = (
        Planned(spec=trial, runs=0 if reason else spec.repetitions, reason=reason)
        for trial, reason in reasons.items()
    )
    return SweepPlan(rows=tuple(rows), summary=summary)


def _steps(spec: SweepSpec, trials: Sequence[TrialSpec]) -> str:
    warmup = _any_of(trial.warmup_steps for trial in trials)
    if spec.steps_grow:
        return f"{warmup} + {FEWEST_PRECISE_STEPS} to {spec.timed_steps:,}"
    return f"{warmup} + {_any_of(trial.timed_steps for trial in trials)}"


def _any_of(counts: Iterable[int]) -> str:
    """Several in brackets, as a term of a sum."""
    words = units.any_of(counts)
    return words if words.isdigit() else f"({words})"


def _growth(spec: SweepSpec) -> str:
    if spec.precision is None or spec.budget_seconds is None:
        return ""
    return (
        " at least; repetitions are added up to --precision "
        f"{units.exact_percent(spec.precision)} or --budget {units.seconds(spec.budget_seconds)}"
    )


def exit_status(records: Sequence[TrialRecord], asked: Collection[str] | None = None) -> int:
    """6 for wrong gradients before 1 for a failure, or for trials that a lost node left over.

    It is 1 as well if nothing completed of the implementations that were `asked` for: the baseline
    alone, which every sweep measures, is no answer.
    """
    from dpbench.analysis.configuration import by_configuration, effective_status

    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(effective_status(record) for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    failed = any(statuses[status] for status in FAILURES)
    left_over = any(record.lost_host is not None for record in counted)
    answered = any(
        effective_status(record) is Status.COMPLETED
        and (asked is None or record.trial.implementation in asked)
        for record in counted
    )
    return 1 if failed or left_over or not answered else 0
