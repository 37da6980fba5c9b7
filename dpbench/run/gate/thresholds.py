"""Tolerances of `dpbench check`, from the command line and pyproject.toml, and its checks before
it measures anything."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dpbench import units
from dpbench.analysis.comparisons.matching import NotComparable, Side, match
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.metrics import METRICS
from dpbench.architecture import make_importable
from dpbench.data.user_code import user_code, with_files
from dpbench.errors import UnknownName, UsageError
from dpbench.launch.machine import Machine
from dpbench.options.bridge import read_value
from dpbench.options.shared import Repetitions
from dpbench.options.types import Choice, Duration, Percent
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.sweep.grid import plan_trials
from dpbench.run.this_machine import environment_here
from dpbench.specs import SweepSpec, WorkloadSpec
from dpbench.specs.traits import IMPLEMENTATIONS

PROJECT_FILE = "pyproject.toml"
SECTION = "[tool.dpbench.check]"
DEFAULTS: Mapping[str, Any] = {
    "tolerance": "3%",
    "metric": ["images_per_second"],
    "strict": False,
    "repetitions": 5,
    "budget": "5m",
}
EXAMPLES = {
    "tolerance": 'tolerance = "3%"',
    "metric": 'metric = ["images_per_second", "peak_memory_bytes=10%"]',
    "strict": "strict = true",
    "repetitions": "repetitions = 5",
    "budget": 'budget = "5m"',
}
FEWEST_REPETITIONS = 2
"""One value per side has no spread between runs, and so no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Compared metrics, their tolerances, and the limit on repetitions."""

    tolerances: dict[str, float]
    """The accepted slowdown of each metric: 0.03 for 3 %."""
    own: frozenset[str]
    """The metrics that were given together with a tolerance, as efficiency=2%."""
    strict: bool
    repetitions: int
    budget_seconds: float
    sources: dict[str, str]
    """The source of each of `DEFAULTS`."""

    def describe(self) -> str:
        """The tolerances and where they come from, for whoever reads the log of a failed check."""
        by_origin: dict[str, list[str]] = {}
        for metric, share in self.tolerances.items():
            origin = self.sources["metric" if metric in self.own else "tolerance"]
            by_origin.setdefault(origin, []).append(f"{metric} {100 * share:.3g} %")
        held = ", ".join(f"{', '.join(texts)} ({origin})" for origin, texts in by_origin.items())
        strict = "strict" if self.strict else "not strict"
        return f"tolerance: {held}; {strict} ({self.sources['strict']})"

    def describe_repetitions(self) -> str:
        """How much is measured, likewise."""
        return (
            f"{self.repetitions} repetitions ({self.sources['repetitions']}), more while "
            f"inconclusive within {units.seconds(self.budget_seconds)} ({self.sources['budget']})"
        )


def resolve(
    typed: Mapping[str, Any], known_metrics: Collection[str], folder: Path | None = None
) -> Thresholds:
    """The effective thresholds; `typed` has a value or None for every key of `DEFAULTS`.

    A tolerance on the command line also replaces those that the file gives single metrics.
    Raises UsageError for a value that cannot be used, UnknownName for an unknown key or metric.
    """
    path = (folder or Path.cwd()) / PROJECT_FILE
    from_file = read_section(path)
    values = {**DEFAULTS, **from_file}
    sources = dict.fromkeys(DEFAULTS, "default") | dict.fromkeys(from_file, PROJECT_FILE)
    given = {key: typed[key] for key in DEFAULTS if typed.get(key) not in (None, [])}
    if "tolerance" in given and "metric" not in given:
        values["metric"] = [entry.partition("=")[0] for entry in values["metric"]]
    values.update(given)
    sources.update(dict.fromkeys(given, "command line"))
    name = {key: _spelling(key, sources[key]) for key in DEFAULTS}
    repetitions = read_value(name["repetitions"], Repetitions, values["repetitions"])
    if repetitions < FEWEST_REPETITIONS:
        raise UsageError(
            f"{name['repetitions']}: {repetitions} has no spread to judge by; expected at least "
            f"{FEWEST_REPETITIONS}, better 5"
        )
    entries = [part.partition("=") for text in values["metric"] for part in text.split(",")]
    return Thresholds(
        tolerances=_tolerances(name, entries, values["tolerance"], known_metrics),
        own=frozenset(metric.strip() for metric, has_own, _ in entries if has_own),
        strict=values["strict"],
        repetitions=repetitions,
        budget_seconds=read_value(name["budget"], Duration, values["budget"]),
        sources=sources,
    )


def read_section(path: Path) -> dict[str, Any]:
    """The keys of [tool.dpbench.check]; none where there is no file or no section."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of which TOMLDecodeError is one
        raise UsageError(f"{path} is not TOML: {error}; correct it") from None
    section = _section(content, path)
    for key, value in section.items():
        if key not in DEFAULTS:
            raise UnknownName(f"key in {SECTION} of {path}:", key, DEFAULTS)
        _check_kind(f"{path}, {SECTION} {key}", key, value)
    return section


def _section(content: dict[str, Any], path: Path) -> dict[str, Any]:
    for where in ("tool", "tool.dpbench", "tool.dpbench.check"):
        content = content.get(where.rpartition(".")[2], {})
        if not isinstance(content, dict):
            raise UsageError(f"{path}: {where} is {content!r}; expected a table, as in {SECTION}")
        if where == "tool.dpbench" and (unknown := [key for key in content if key != "check"]):
            raise UnknownName(f"key in [tool.dpbench] of {path}:", unknown[0], ["check"])
    return content


def _check_kind(where: str, key: str, value: Any) -> None:
    right = {
        "tolerance": isinstance(value, str),
        "metric": isinstance(value, list) and all(isinstance(entry, str) for entry in value),
        "strict": isinstance(value, bool),
        "repetitions": type(value) is int,
        "budget": isinstance(value, str),
    }
    if not right[key] or value == []:
        raise UsageError(f"{where}: got {value!r}; expected e.g. {EXAMPLES[key]}")


def _spelling(key: str, source: str) -> str:
    """The value as errors name it: as it was written there."""
    return f"{PROJECT_FILE}, {SECTION} {key}" if source == PROJECT_FILE else f"--{key}"


def _tolerances(
    name: Mapping[str, str],
    entries: Sequence[tuple[str, str, str]],
    tolerance: str,
    known: Collection[str],
) -> dict[str, float]:
    default = read_value(name["tolerance"], Percent, tolerance)
    held: dict[str, float] = {}
    for token, has_own, own in entries:
        metric = read_value(name["metric"], Annotated[str, Choice(tuple(known))], token)
        if metric in held:
            raise UsageError(f"{name['metric']}: {metric} is listed twice; give it one tolerance")
        held[metric] = (
            read_value(f"{name['metric']} {metric}", Percent, own) if has_own else default
        )
    return held


def refuse_against(names: Sequence[str], against: str) -> None:
    """Raises UsageError if --against is no implementation, or is among --implementations."""
    read_value("--against", Annotated[str, Choice(tuple(IMPLEMENTATIONS))], against)
    if against in names:
        raise UsageError(
            f"--against {against} is among --implementations {','.join(names)}; it would be "
            "compared with itself"
        )


def unmeasured(spec: SweepSpec) -> tuple[TrialRecord, ...]:
    """The planned trials as records without numbers, to find out what can be compared."""
    return tuple(
        TrialRecord(
            trial=trial,
            environment_id="",
            started_utc="",
            duration_seconds=0.0,
            status=Status.SKIPPED,
        )
        for trial in plan_trials(spec, 1)
    )


def require_trusted_code(baseline: str, spec: SweepSpec, theirs: Mapping[str, str]) -> None:
    """Raises UsageError unless the command names just that code of the user's that the sweep of the
    baseline would run."""
    needed = user_code(spec)
    for key in {**needed, **theirs}:
        if key not in needed:
            raise UsageError(
                f"--{key} {theirs[key]} has no effect, as {baseline} is run again as it is; leave "
                "it out"
            )
        if theirs.get(key) != needed[key]:
            raise UsageError(
                f"--baseline {baseline}: its sweep uses --{key} {needed[key]}, whose code would be "
                f"imported; if you trust it, give --{key} {shlex.quote(needed[key])} as well"
            )
    make_importable(*needed.values())


def as_it_is_now(workload: WorkloadSpec, data_dir: Path | None) -> WorkloadSpec:
    """The workload with the user's files of today; raises UsageError for code that does not run."""
    from dpbench.measure.try_out import load_tried, try_step

    loaded = load_tried(workload.architecture)
    if workload.step is not None:
        try_step(workload.step, loaded)
    return with_files(workload, data_dir)


def check_pairs(sides: Iterable[tuple[Side, Side]], spec: SweepSpec) -> None:
    """Raises UsageError for a candidate with nothing to be compared with, or with several things.

    All of them are of the sweep `spec`, so they can differ in group sizes and backends only.
    """
    for before, now in sides:
        try:
            match(before, now)
        except NotComparable:
            raise UsageError(_no_common_size(before, now, spec)) from None
        except UsageError:
            raise UsageError(
                f"--backends {_listed(spec.backends)}: only one of {now.label} and {before.label} "
                "has a choice of backend, so there are several to compare with one; give one "
                "backend"
            ) from None


def _no_common_size(before: Side, now: Side, spec: SweepSpec) -> str:
    first, second = (
        sorted({record.trial.group_size for record in side.selected()}) for side in (before, now)
    )
    return (
        f"--group-sizes {_listed(spec.group_sizes)}: {now.label} runs at {_listed(second)}, but "
        f"{before.label} at {_listed(first)}; add {min(*first, *second)}"
    )


def check_usable(sides: Iterable[tuple[Side, Side]], machine: Machine) -> None:
    """Raises NotComparable if each pair has a side of which this machine can run nothing."""
    reasons = [_unusable(before, machine) or _unusable(now, machine) for before, now in sides]
    if all(reasons):
        raise NotComparable(f"nothing could be compared: {reasons[0]}")


def _unusable(side: Side, machine: Machine) -> str | None:
    reasons = [machine.unusable_reason(record.trial) for record in side.selected()]
    return f"{side.label}: {reasons[0]}" if all(reasons) else None


def check_baseline(before: Side) -> None:
    """Raises UsageError for results with less than a spread in every configuration."""
    groups = by_configuration(before.selected()).values()
    most = max(len(usable_repetitions(group)) for group in groups)
    if most < FEWEST_REPETITIONS:
        raise UsageError(
            f"{before.label} has at most {units.counted(most, 'completed repetition')} of a "
            f"configuration, but a spread takes {FEWEST_REPETITIONS}, better 5; measure it again"
        )


def check_environment(before: Side, machine: Machine) -> None:
    """Raises NotComparable for results of another environment than this one."""
    now = environment_here(machine)
    different = [d for there in before.environments.values() for d in now.differences_from(there)]
    if different:
        raise NotComparable(
            f"{before.label} comes from another environment than this one: "
            f"{'; '.join(dict.fromkeys(different))}. --force compares nevertheless, --against "
            "measures a baseline here"
        )


def check_baselines_of_efficiency(metrics: Collection[str], spec: SweepSpec) -> None:
    relative = [metric for metric in metrics if METRICS[metric].relative]
    if relative and (1 not in spec.group_sizes or max(spec.group_sizes) == 1):
        raise UsageError(
            f"--metric {relative[0]} needs group size 1 and a larger one, but --group-sizes are "
            f"{_listed(spec.group_sizes)}; measure both"
        )


def _listed(values: Sequence[object]) -> str:
    return ",".join(map(str, values))
