"""Summaries as plain values under stable keys: what JSON, CSV and data frames hold.

The keys never change meaning: `images_per_second` keeps its name whatever the `item` is.
"""

from __future__ import annotations

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields import FieldKind, Plain, read_row
from dpbench.analysis.setting_fields import SETTINGS
from dpbench.analysis.steps import StepSummary
from dpbench.analysis.time_to_loss import TimeToLoss
from dpbench.placement import host_counts
from dpbench.specs import TrialSpec

ROW_KEYS = (
    "implementation",
    "backend",
    "group_size",
    "batch_size",
    "global_batch_size",
    "images_per_second",
    "images_per_second_low",
    "images_per_second_high",
    "speedup",
    "speedup_low",
    "speedup_high",
    "absolute_speedup",
    "efficiency",
    "efficiency_low",
    "efficiency_high",
    "exposed_communication_seconds",
    "loss_delta_per_step",
    "loss_delta_per_second",
    "final_loss",
    "peak_memory_bytes",
    "step_seconds_p50",
    "step_seconds_p95",
    "repetitions",
    "timed_steps",
    "status",
    "reason",
    "verified",
    "item",
    "unit",
    "duration_seconds",
    "step_seconds_p99",
    "outliers",
    "slowest_outlier",
    "step_autocorrelation",
    "steady",
    "rank_skew",
    "slowest_rank",
    "reduced_bytes_per_step",
    "collectives_per_step",
    "loss_slope_per_step",
    "loss_slope_per_step_low",
    "loss_slope_per_step_high",
    "loss_slope_per_second",
    "loss_slope_per_second_low",
    "loss_slope_per_second_high",
    "target_loss",
    "time_to_loss_seconds",
    "time_to_loss_seconds_low",
    "time_to_loss_seconds_high",
    "time_to_loss_samples",
    "time_to_loss_censored",
    "loss_at_equal_samples",
    "loss_at_equal_seconds",
    "noise_scale_samples",
    "noise_scale_samples_low",
    "noise_scale_samples_high",
    "statistical_efficiency",
    "goodput",
    "goodput_low",
    "goodput_high",
    "flops_per_second",
    "mfu",
    "peak_reserved_memory_bytes",
    "joules_per_item",
    "joules_per_item_low",
    "joules_per_item_high",
    "absolute_speedup_low",
    "absolute_speedup_high",
    "exposed_communication_seconds_low",
    "exposed_communication_seconds_high",
    "loss_delta_per_step_low",
    "loss_delta_per_step_high",
    "loss_delta_per_second_low",
    "loss_delta_per_second_high",
    "final_loss_low",
    "final_loss_high",
    "rank_skew_low",
    "rank_skew_high",
    "loss_at_equal_samples_low",
    "loss_at_equal_samples_high",
    "loss_at_equal_seconds_low",
    "loss_at_equal_seconds_high",
    "statistical_efficiency_low",
    "statistical_efficiency_high",
    "flops_per_second_low",
    "flops_per_second_high",
    "mfu_low",
    "mfu_high",
    "duration_seconds_low",
    "duration_seconds_high",
    "learning_rate",
    "learning_rate_rule",
    "images_per_second_sample_size",
    "images_per_second_basis",
    "nodes",
    *(field.key for field in SETTINGS),
)
_TEXT = """implementation backend status reason item unit steady learning_rate_rule
images_per_second_basis nodes"""
_INTEGERS = """group_size batch_size global_batch_size repetitions timed_steps outliers slowest_rank
peak_memory_bytes peak_reserved_memory_bytes reduced_bytes_per_step time_to_loss_censored
images_per_second_sample_size"""
_KINDS: dict[str, FieldKind] = {
    **dict.fromkeys(_TEXT.split(), "text"),
    **dict.fromkeys(_INTEGERS.split(), "integer"),
    "verified": "boolean",
    **{field.key: field.kind for field in SETTINGS},
}
ROW_KINDS: dict[str, FieldKind] = {key: _KINDS.get(key, "number") for key in ROW_KEYS}
"""The type of every key's value, which may be None."""


def to_row(row: ConfigurationSummary) -> dict[str, Plain]:
    """One summary with exactly `ROW_KEYS`, in that order."""
    values: dict[str, Plain] = {
        "implementation": row.implementation,
        "backend": row.backend,
        "group_size": row.group_size,
        "batch_size": row.batch_size,
        "global_batch_size": row.global_batch_size,
        **with_ends("images_per_second", row.throughput),
        **with_ends("speedup", row.speedup),
        **with_ends("absolute_speedup", row.absolute_speedup),
        **with_ends("efficiency", row.efficiency),
        **with_ends("exposed_communication_seconds", row.exposed_communication_seconds),
        **with_ends("loss_delta_per_step", row.loss_delta_per_step),
        **with_ends("loss_delta_per_second", row.loss_delta_per_second),
        **with_ends("final_loss", row.final_loss),
        "peak_memory_bytes": row.peak_memory_bytes,
        **_steps(row.steps),
        "repetitions": row.repetitions,
        "timed_steps": row.timed_steps,
        "status": row.status.value,
        "reason": row.reason,
        "verified": row.verified,
        "item": row.item,
        "unit": f"{row.item}/s",
        **with_ends("duration_seconds", row.duration),
        **with_ends("rank_skew", row.rank_skew),
        "slowest_rank": row.slowest_rank,
        "reduced_bytes_per_step": row.reduced_bytes_per_step,
        "collectives_per_step": row.collectives_per_step,
        **with_ends("loss_slope_per_step", row.loss_slope_per_step),
        **with_ends("loss_slope_per_second", row.loss_slope_per_second),
        **_time_to_loss(row.time_to_loss),
        **with_ends("loss_at_equal_samples", row.loss_at_equal_samples),
        **with_ends("loss_at_equal_seconds", row.loss_at_equal_seconds),
        **with_ends("noise_scale_samples", row.noise_scale),
        **with_ends("statistical_efficiency", row.statistical_efficiency),
        **with_ends("goodput", row.goodput),
        **with_ends("flops_per_second", row.flops_per_second),
        **with_ends("mfu", row.mfu),
        "peak_reserved_memory_bytes": row.peak_reserved_memory_bytes,
        **with_ends("joules_per_item", row.joules_per_item),
        "learning_rate": row.learning_rate,
        "learning_rate_rule": row.learning_rate_rule,
        **_provenance("images_per_second", row.throughput),
        "nodes": host_counts(row.nodes) or None,
        **_settings(row.configuration),
    }
    return {key: values[key] for key in ROW_KEYS}


def _provenance(key: str, estimate: Estimate | None) -> dict[str, Plain]:
    """How many values are behind the number, and what its interval covers."""
    return {
        f"{key}_sample_size": None if estimate is None else estimate.sample_size,
        f"{key}_basis": None if estimate is None else estimate.basis,
    }


def _steps(steps: StepSummary | None) -> dict[str, Plain]:
    return {
        "step_seconds_p50": None if steps is None else steps.p50_seconds,
        "step_seconds_p95": None if steps is None else steps.p95_seconds,
        "step_seconds_p99": None if steps is None else steps.p99_seconds,
        "outliers": None if steps is None else steps.outliers,
        "slowest_outlier": None if steps is None else steps.slowest_outlier,
        "step_autocorrelation": None if steps is None else steps.autocorrelation,
        "steady": None if steps is None else steps.steady,
    }


def _settings(trial: TrialSpec | None) -> dict[str, Plain]:
    """None of numbers that nobody measured here."""
    if trial is None:
        return dict.fromkeys(field.key for field in SETTINGS)
    return read_row(SETTINGS, trial)


def _time_to_loss(found: TimeToLoss | None) -> dict[str, Plain]:
    return {
        "target_loss": None if found is None else found.target_loss,
        **with_ends("time_to_loss_seconds", None if found is None else found.seconds),
        "time_to_loss_samples": None if found is None else _value(found.samples),
        "time_to_loss_censored": None if found is None else found.censored,
    }


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def with_ends(key: str, estimate: Estimate | None) -> dict[str, Plain]:
    """The value under `key`, its interval under `key`_low and `key`_high."""
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
