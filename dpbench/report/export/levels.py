"""The levels of detail that results can be exported at, and the fields of their rows."""

from __future__ import annotations

from dpbench.analysis.collective_rows import COLLECTIVE_FIELDS
from dpbench.analysis.fields import Field
from dpbench.analysis.rows import ROW_KINDS
from dpbench.analysis.tidy import RANK_LEVEL_FIELDS, STEP_FIELDS
from dpbench.analysis.trial_fields import TRIAL_FIELDS
from dpbench.records import Status
from dpbench.report.meanings import MEANINGS

_ENDS = {"_low": "Lower", "_high": "Upper"}
_OTHER_MEANINGS = {
    "nodes": "Replicas on each host, as in 2+1; nothing where all are on one.",
    "reason": "Why it is not simply completed.",
    "item": "What a sample is called: images, tokens, rows.",
    "unit": "Unit of images_per_second.",
    "slowest_outlier": "Slowest outlier ÷ the median step.",
    "target_loss": "The loss whose time to be reached is told.",
    "time_to_loss_samples": "Samples consumed until the loss was reached.",
    "time_to_loss_censored": "Repetitions that did not reach the loss.",
    "learning_rate_rule": "How the learning rate follows the samples behind a step.",
    "images_per_second_sample_size": "Values behind images_per_second and its interval.",
    "images_per_second_basis": (
        "What the interval covers: repetitions, step batches of one repetition, or a single value."
    ),
}
_CHOICES = {"status": tuple(status.value for status in Status)}
_REQUIRED = ("implementation", "group_size", "status", "repetitions", "item", "unit")


def _configuration_field(key: str) -> Field:
    return Field(
        key=key,
        kind=ROW_KINDS[key],
        meaning=_meaning(key),
        required=key in _REQUIRED,
        choices=_CHOICES.get(key, ()),
    )


def _meaning(key: str) -> str:
    for suffix, end in _ENDS.items():
        if key.endswith(suffix):
            return f"{end} end of the 95 % interval of {key.removesuffix(suffix)}."
    return _OTHER_MEANINGS.get(key) or MEANINGS[key]


LEVELS: dict[str, tuple[Field, ...]] = {
    "configuration": tuple(map(_configuration_field, ROW_KINDS)),
    "trial": TRIAL_FIELDS,
    "rank": RANK_LEVEL_FIELDS,
    "step": STEP_FIELDS,
    "collective": COLLECTIVE_FIELDS,
}
