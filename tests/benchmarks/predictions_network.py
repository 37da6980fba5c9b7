"""Steps of two hosts across a link of a given rate: predicted from one rank, and measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product

from tabulate import tabulate

from tests.benchmarks.figure import Figure
from tests.multi_node.hosts import unusable_reason
from tests.multi_node.prediction import Prediction, collective, predictions, trial
from tests.multi_node.rank_program import Plan

RATES = (1e9, 200e6)
MODELS = ("mnist_cnn", "mlp")
BATCHES = (32, 128)
IMPLEMENTATIONS = ("ddp", "torch-ddp")
REPETITIONS = 2
SIZES = (4, 4096, 65_536, 262_144, 1_048_576, 2_097_152, 4_194_304, 8_388_608)
OVERLAPS = (65_536, 1_048_576, 4_194_304)
SAMPLES = 20
HIGHEST_ERROR = 0.15
COLUMNS = (
    "link",
    "model",
    "batch",
    "implementation",
    "measured",
    "from the curve",
    "error",
    "from the rate",
    "error",
)


def run() -> Iterator[Figure]:
    if (reason := unusable_reason()) is not None:
        yield Figure(name="steps across a link", value=reason, target="within 15 %", met=False)
        return
    found = [(rate, one) for rate in RATES for one in predictions(rate, _plan())]
    rows = [_row(rate, one) for rate, one in found]
    print(tabulate(rows, COLUMNS, stralign="right", colalign=("right", "left", "right", "left")))
    sys.stdout.flush()
    for name, errors in (
        ("curve of all-reduces", [one.error_from_curve for _, one in found]),
        ("rate of the link", [one.error_from_rate for _, one in found]),
    ):
        worst = max(errors, key=abs)
        yield Figure(
            name=f"steps of two hosts, predicted from one rank and the {name}",
            value=f"at most {abs(worst):.1%} off ({worst:+.1%}), {len(errors)} cases",
            target="within 15 %",
            met=abs(worst) <= HIGHEST_ERROR,
        )


def _plan() -> Plan:
    """What is compared lies close together in time; the second pass goes backwards."""
    cases = list(product(MODELS, BATCHES, IMPLEMENTATIONS, (1, 2)))
    trials = [
        trial(model, implementation, size, batch, repetition=repetition)
        for repetition in range(REPETITIONS)
        for model, batch, implementation, size in (cases if repetition % 2 == 0 else cases[::-1])
    ]
    collectives = collective(SIZES, OVERLAPS, SAMPLES)
    return Plan(trials=tuple(trials), collectives=(collectives,))


def _row(rate: float, one: Prediction) -> tuple[str, ...]:
    return (
        f"{rate / 1e6:g} Mbit/s",
        one.trial.workload.architecture,
        f"{one.trial.batch_size}",
        one.trial.implementation,
        f"{one.measured_seconds * 1e3:.1f} ms",
        f"{one.from_curve_seconds * 1e3:.1f} ms",
        f"{one.error_from_curve:+.1%}",
        f"{one.from_rate_seconds * 1e3:.1f} ms",
        f"{one.error_from_rate:+.1%}",
    )
