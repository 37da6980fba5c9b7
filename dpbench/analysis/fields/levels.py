"""The levels of detail of results, and the fields of their rows."""

from __future__ import annotations

from collections.abc import Iterable

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields import identity, learning, measured, ranks
from dpbench.analysis.fields.field import (
    Field,
    Metric,
    Plain,
    ReadField,
    SweepField,
    flat,
    in_key_order,
    of_configuration,
    of_trial,
    read_row,
)
from dpbench.records import TrialRecord

SWEEP_FIELDS: tuple[SweepField, ...] = (
    *identity.IDENTITY,
    *identity.WORKLOAD,
    *measured.SPEED,
    *learning.LEARNING,
    *measured.MACHINE,
    *measured.STEPS,
    *measured.USAGE,
    *measured.TRIAL,
    *identity.OUTCOME,
)
"""Fields in the order of a table's columns."""

METRICS: dict[str, Metric] = {one.key: one for one in SWEEP_FIELDS if isinstance(one, Metric)}
"""Metrics that `compare` and `check` can compare."""


def _configuration_fields() -> Iterable[ReadField[ConfigurationSummary]]:
    return (found for field in SWEEP_FIELDS if (found := of_configuration(field)))


def _trial_fields() -> Iterable[ReadField[TrialRecord]]:
    return (found for field in SWEEP_FIELDS if (found := of_trial(field)))


COLUMNS: dict[str, ReadField[ConfigurationSummary]] = {
    field.key: field for field in _configuration_fields() if field.header
}
"""The columns that a table of configurations may have."""

# Programs read exported files by position too: a key never changes its place, new ones come last.
_CONFIGURATION_ORDER = """
implementation backend group_size batch_size global_batch_size images_per_second
images_per_second_low images_per_second_high speedup speedup_low speedup_high absolute_speedup
efficiency efficiency_low efficiency_high exposed_communication_seconds loss_delta_per_step
loss_delta_per_second final_loss peak_memory_bytes step_seconds_p50 step_seconds_p95 repetitions
timed_steps status reason verified item unit duration_seconds step_seconds_p99 outliers
slowest_outlier step_autocorrelation steady rank_skew slowest_rank reduced_bytes_per_step
collectives_per_step loss_slope_per_step loss_slope_per_step_low loss_slope_per_step_high
loss_slope_per_second loss_slope_per_second_low loss_slope_per_second_high target_loss
time_to_loss_seconds time_to_loss_seconds_low time_to_loss_seconds_high time_to_loss_samples
time_to_loss_censored loss_at_equal_samples loss_at_equal_seconds noise_scale_samples
noise_scale_samples_low noise_scale_samples_high statistical_efficiency goodput goodput_low
goodput_high flops_per_second mfu peak_reserved_memory_bytes joules_per_item joules_per_item_low
joules_per_item_high absolute_speedup_low absolute_speedup_high exposed_communication_seconds_low
exposed_communication_seconds_high loss_delta_per_step_low loss_delta_per_step_high
loss_delta_per_second_low loss_delta_per_second_high final_loss_low final_loss_high rank_skew_low
rank_skew_high loss_at_equal_samples_low loss_at_equal_samples_high loss_at_equal_seconds_low
loss_at_equal_seconds_high statistical_efficiency_low statistical_efficiency_high
flops_per_second_low flops_per_second_high mfu_low mfu_high duration_seconds_low
duration_seconds_high learning_rate learning_rate_rule images_per_second_sample_size
images_per_second_basis nodes optimizer accumulation_steps dtype compile channels_last
checkpoint_activations sync_every bucket_cap_mb comm_hook prefetch data_workers step files allocator
page_faults_per_step cpu_seconds_per_step overlap
final_loss_over_seeds final_loss_over_seeds_low final_loss_over_seeds_high
time_to_loss_over_seeds_seconds time_to_loss_over_seeds_seconds_low
time_to_loss_over_seeds_seconds_high warmup_steps threads_per_replica
"""
_TRIAL_ORDER = """
trial_id implementation backend group_size batch_size repetition status global_batch_size nodes
scaling architecture dataset learning_rate optimizer accumulation_steps dtype compile channels_last
checkpoint_activations sync_every bucket_cap_mb comm_hook prefetch data_workers step files seed
threads_per_replica environment_id started_utc reason verified max_relative_error duration_seconds
item elapsed_seconds timed_steps samples images_per_second exposed_communication_seconds
initial_loss final_loss loss_delta loss_delta_per_step loss_delta_per_second rank_skew slowest_rank
peak_memory_bytes peak_reserved_memory_bytes memory_imbalance flops_per_item
allocator page_faults_per_step cpu_seconds_per_step overlap warmup_steps
"""

CONFIGURATION_FIELDS = in_key_order(flat(_configuration_fields()), _CONFIGURATION_ORDER)
TRIAL_FIELDS = in_key_order(_trial_fields(), _TRIAL_ORDER)
TRIAL_IDENTITY = TRIAL_FIELDS[: len(identity.IDENTITY) + 1]
"""The keys with which every level below the configuration begins, up to the status."""

LEVELS: dict[str, tuple[Field, ...]] = {
    "configuration": CONFIGURATION_FIELDS,
    "trial": TRIAL_FIELDS,
    "rank": (*TRIAL_IDENTITY, *ranks.RANK_FIELDS),
    "step": (*TRIAL_IDENTITY, *ranks.STEP_FIELDS),
    "collective": (*ranks.SPEC_FIELDS, *ranks.SIZE_FIELDS),
}


OF_SEVERAL = tuple(found for field in identity.OF_SEVERAL if (found := of_configuration(field)))
"""Keys that rows have besides in a sweep of several works."""


def configuration_fields(
    rows: Iterable[ConfigurationSummary],
) -> tuple[ReadField[ConfigurationSummary], ...]:
    """The fields that all of these rows have."""
    several = any(row.work for row in rows)
    return (*CONFIGURATION_FIELDS, *OF_SEVERAL) if several else CONFIGURATION_FIELDS


def keys_of(level: str, rows: Iterable[ConfigurationSummary] = ()) -> tuple[str, ...]:
    """The keys of a level; of configurations those that all these rows have."""
    fields = configuration_fields(rows) if level == "configuration" else LEVELS[level]
    return tuple(field.key for field in fields)


def configuration_row(row: ConfigurationSummary) -> dict[str, Plain]:
    """One summary as plain values; a key never changes its meaning: `images_per_second` keeps its
    name whatever the `item` is."""
    return read_row(configuration_fields([row]), row)
