"""The fields that identify a run: the configuration, its workload, its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpbench.analysis.configuration import ConfigurationSummary, effective_status
from dpbench.analysis.fields.field import FieldKind, Plain, SweepField, stored
from dpbench.data.user_code import DIGITS
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import ALLOCATORS, AXES, KEEP, SETTINGS, TrialSpec
from dpbench.specs.settings import Choice, PositiveNumber, Setting, Switch, WholeNumber
from dpbench.specs.shares import host_counts


@dataclass(frozen=True, slots=True)
class Replicas:
    """A group size; tables add the number of replicas on each host, if there are several hosts."""

    count: int
    nodes: tuple[int, ...]

    @property
    def plain(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The learning rate that ran; tables add its scaling rule."""

    value: float | None
    rule: str | None

    @property
    def plain(self) -> float | None:
        return self.value


def _of_spec(read: Callable[[TrialSpec], Plain]) -> Callable[[TrialRecord], Plain]:
    return lambda record: read(record.trial)


def _of_configuration(
    read: Callable[[TrialSpec], Plain],
) -> Callable[[ConfigurationSummary], Plain]:
    return lambda row: None if row.configuration is None else read(row.configuration)


def _trial(
    key: str, meaning: str, read: Callable[[TrialRecord], Plain], *, kind: FieldKind = "text"
) -> SweepField:
    """A field that only rows of trials have, and all of them."""
    return SweepField(key=key, kind=kind, meaning=meaning, run=read, run_required=True)


def _setting(
    key: str,
    meaning: str,
    read: Callable[[TrialSpec], Plain],
    *,
    kind: FieldKind = "text",
    **more: Any,
) -> SweepField:
    """A setting that sweeps compare; missing from published numbers, whose settings are unknown."""
    header = key.removesuffix("_mb").replace("_", " ").capitalize()
    return SweepField(
        key=key,
        kind=kind,
        meaning=meaning,
        header=header,
        row=_of_configuration(read),
        run=_of_spec(read),
        **more,
    )


def _of_a_setting(name: str, setting: Setting) -> SweepField:
    """The column of a setting, from its declaration."""
    kind, more = FIELD_KINDS.get(type(setting.kind), "text"), {}
    if isinstance(setting.kind, Choice):
        more["choices"] = setting.kind.canonical
    return _setting(name, setting.meaning, lambda trial: trial.setting(name), kind=kind, **more)


FIELD_KINDS: dict[type, FieldKind] = {
    WholeNumber: "integer",
    PositiveNumber: "number",
    Switch: "boolean",
}

IDENTITY_FIELDS = (
    _trial(
        "trial_id",
        "Hash of the trial's specification; joins the levels.",
        lambda r: r.trial.trial_id,
    ),
    SweepField(
        key="implementation",
        kind="text",
        meaning="Implementation that trains the replicas; settings that are not at their default "
        "follow in brackets.",
        required=True,
        header="Implementation",
        shown="always",
        row=stored("implementation"),
        run=_of_spec(lambda trial: trial.implementation_label),
        run_required=True,
    ),
    SweepField(
        key="backend",
        kind="text",
        meaning="How gradients travel: gloo, nccl, shm, threads of one process, or none; "
        "any other name is from the source of the numbers.",
        header="Backend",
        shown="always",
        row=lambda row: row.backend or None,
        run=_of_spec(lambda trial: trial.backend),
        run_required=True,
    ),
    SweepField(
        key="group_size",
        kind="integer",
        meaning="Number of replicas that train together; across hosts, tables add the replicas of "
        "each in brackets.",
        required=True,
        header="Group",
        shown="always",
        row=lambda row: Replicas(row.group_size, row.nodes),
        run=_of_spec(lambda trial: trial.group_size),
        run_required=True,
    ),
    SweepField(
        key="batch_size",
        kind="integer",
        meaning="Samples that a replica takes in a micro-step; in strong scaling, those of all "
        "replicas.",
        header="Batch",
        shown="always",
        row=stored("batch_size"),
        run=_of_spec(lambda trial: trial.batch_size),
        run_required=True,
    ),
    _trial(
        "repetition",
        "Number of the repetition, from 0.",
        lambda r: r.trial.repetition,
        kind="integer",
    ),
)

_FIRST, _LAST = ("optimizer", "accumulation_steps"), ("step",)
"""Exported files have these columns where they were before settings had an order of their own."""

SETTING_FIELDS = (
    *(
        _of_a_setting(name, SETTINGS[name])
        for name in dict.fromkeys((*_FIRST, *AXES, *_LAST))
        if SETTINGS[name].meaning
    ),
    _setting(
        "files",
        f"First {DIGITS} digits of the SHA-256 of the user's own files; missing without any.",
        lambda t: t.workload.files_sha256 and t.workload.files_sha256[:DIGITS],
    ),
    _setting(
        "allocator",
        "keep where ranks kept the host memory that they freed; system where the C library did "
        "what it does.",
        lambda t: t.allocator or KEEP,
        choices=ALLOCATORS,
    ),
)

WORKS: dict[str, tuple[str, Callable[[TrialSpec], Plain]]] = {
    "architecture": ("The model.", lambda trial: trial.workload.architecture),
    "scaling": (
        "weak: each replica keeps its batch; strong: they share one.",
        lambda trial: trial.scaling,
    ),
}
"""Keys that distinguish the works of a sweep: meaning, and how each is read from a trial."""

WORKLOAD_FIELDS = (
    SweepField(
        key="global_batch_size",
        kind="integer",
        meaning="Samples that all replicas together take in a micro-step.",
        header="Global batch",
        wrapped="Global\nbatch",
        row=stored("global_batch_size"),
        run=_of_spec(lambda trial: trial.global_batch_size),
        run_required=True,
    ),
    SweepField(
        key="learning_rate",
        meaning="Learning rate of the optimizer as it ran; tables add the rule that scaled it in "
        "brackets.",
        header="Learning rate",
        wrapped="Learning\nrate",
        row=lambda row: LearningRate(row.learning_rate, row.learning_rate_rule),
        run=_of_spec(lambda trial: trial.learning_rate),
        run_required=True,
    ),
    SweepField(
        key="learning_rate_rule",
        kind="text",
        meaning="How the learning rate follows the samples in a step.",
        row=stored("learning_rate_rule"),
    ),
    *SETTING_FIELDS,
    SweepField(
        key="nodes",
        kind="text",
        meaning="Replicas on each host, as in 2+1; missing if all are on one.",
        row=lambda row: host_counts(row.nodes) or None,
        run=_of_spec(lambda trial: host_counts(trial.nodes) or None),
    ),
    *(_trial(key, meaning, _of_spec(read)) for key, (meaning, read) in WORKS.items()),
    _trial("dataset", "Dataset that it trains on.", lambda r: r.trial.workload.dataset),
    _trial("seed", "Seed of the workload.", lambda r: r.trial.workload.seed, kind="integer"),
    _trial(
        "environment_id",
        "Name of the file in environments/ that describes the machine.",
        lambda r: r.environment_id,
    ),
    _trial("started_utc", "Start of the trial, ISO 8601.", lambda r: r.started_utc),
    SweepField(
        key="item",
        kind="text",
        meaning="Name of the items: images, tokens, rows.",
        required=True,
        row=stored("item"),
        run=lambda record: record.item,
        run_required=True,
    ),
    SweepField(
        key="unit",
        kind="text",
        meaning="Unit of images_per_second.",
        required=True,
        row=lambda row: f"{row.item}/s",
    ),
)


WORK_FIELDS = tuple(
    SweepField(key=key, kind="text", meaning=meaning, row=_of_configuration(read))
    for key, (meaning, read) in WORKS.items()
)
"""Fields that rows have only in a sweep of several architectures or both kinds of scaling."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Status and reason of a configuration's end; tables show as much of the reason as fits."""

    status: Status
    reason: str | None

    @property
    def plain(self) -> str:
        return self.status.value


OUTCOME_FIELDS = (
    SweepField(
        key="verified",
        kind="boolean",
        meaning="Whether gradients were compared with those of one process in float64, or float32 "
        "above 67 million parameters, and agreed; missing if not compared.",
        header="Verified",
        style="check",
        row=stored("verified"),
        run=lambda r: None if r.verification is None else r.verification.passed,
    ),
    SweepField(
        key="max_relative_error",
        meaning="Largest relative error of a gradient against one process.",
        run=lambda r: None if r.verification is None else r.verification.max_relative_error,
    ),
    SweepField(
        key="status",
        kind="text",
        meaning="How it ended, and why if it did not simply complete; without completion there is "
        "no speed.",
        required=True,
        choices=tuple(status.value for status in Status),
        header="Status",
        shown="always",
        row=lambda row: Ending(row.status, row.reason),
        run=lambda record: effective_status(record).value,
        run_required=True,
    ),
    SweepField(
        key="reason",
        kind="text",
        meaning="Why it is not simply completed.",
        row=stored("reason"),
        run=lambda record: record.reason,
    ),
)
