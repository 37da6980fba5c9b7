"""Changes alone against the step as it is, worked by hand, and what --change accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.communication.collective_cost import network_cost
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.simulation import Bucket
from dpbench.analysis.projection.step_model import Spread
from dpbench.analysis.projection.what_if import DEFAULTS, ChangedStep, parse_change, what_if
from dpbench.errors import UsageError
from tests.analysis.communication.collective_records import topology
from tests.analysis.projection.models import series
from tests.analysis.projection.traces import step

MIB = 2**20


def plain() -> Series:
    """10 ms forward, 10 ms backward, 2 ms optimizer; 16 MiB in one bucket at its end, which 25 GB/s
    between nodes of one carry in 1.34 ms, after 20 µs."""
    inter = topology().inter
    network = network_cost(topology(ranks_per_node=1, algorithm="ring", intra=inter))
    one = series(network_of=lambda _: network, network_is_given=True, replicas_per_node=1)
    trace = step([0.015, 0.020], [8 * MIB, 8 * MIB], forward=0.010, optimizer=0.002)
    model = replace(
        one.model,
        trace=trace,
        buckets=(Bucket(ready_seconds=0.020, nbytes=16 * MIB),),
        noise=None,
    )
    return replace(one, model=model, spread=Spread())


def outcome(change: str) -> ChangedStep:
    [found] = what_if(plain(), [2], [parse_change(change)])
    return found.outcomes[1]


TRANSFER = 16 * MIB / 25e9
LATENCY = 2 * 10e-6


def test_as_is_comes_first_and_is_one() -> None:
    [found] = what_if(plain(), [2], [])
    [as_is] = found.outcomes
    assert as_is.step_seconds.value == pytest.approx(0.022 + TRANSFER + LATENCY)
    assert (as_is.ratio.value, as_is.ratio.basis) == (1, "baseline")
    assert (found.kind, found.simulation_error) == ("projected", None)


@pytest.mark.parametrize(
    ("change", "step_seconds"),
    [
        ("bandwidth=2", 0.022 + TRANSFER / 2 + LATENCY),
        ("latency=0.5", 0.022 + TRANSFER + LATENCY / 2),
        ("gradients=bf16", 0.022 + TRANSFER / 2 + LATENCY),
        ("gradients=fp32", 0.022 + TRANSFER + LATENCY),
        ("accumulate=4", 3 * 0.020 + 0.022 + TRANSFER + LATENCY),
        ("bucket-cap-mb=8", 0.022 + TRANSFER / 2 + LATENCY),
        ("stragglers=none", 0.022 + TRANSFER + LATENCY),
        ("overlap=none", 0.022 + TRANSFER + LATENCY),
    ],
)
def test_a_change_does_what_it_says(change: str, step_seconds: float) -> None:
    assert outcome(change).step_seconds.value == pytest.approx(step_seconds, rel=1e-6)


def test_gradients_sent_as_bf16_take_the_place_of_a_hook() -> None:
    one = plain()
    network = one.network.compressed(0.5)
    half = replace(one, network=network, model=replace(one.model, network=network))
    [found] = what_if(half, [2], [parse_change("gradients=bf16")])
    as_is, changed = found.outcomes
    assert as_is.step_seconds.value == changed.step_seconds.value


def test_perfect_overlap_starts_with_the_first_bucket() -> None:
    split = plain()
    buckets = tuple(Bucket(ready_seconds=r, nbytes=8 * MIB) for r in (0.015, 0.020))
    split = replace(split, model=replace(split.model, buckets=buckets))
    [found] = what_if(split, [2], [parse_change("overlap=perfect")])
    assert found.outcomes[1].step_seconds.value == pytest.approx(0.022)


def test_four_micro_steps_consume_four_times_the_samples() -> None:
    found = outcome("accumulate=4")
    assert found.throughput.value == pytest.approx(2 * 4 * 32 / found.step_seconds.value)
    before = 2 * 32 / (0.022 + TRANSFER + LATENCY)
    assert found.ratio.value == pytest.approx(found.throughput.value / before)


def test_what_both_sides_share_drops_out_of_the_ratio() -> None:
    one = replace(plain(), spread=Spread(compute=(0.5, 2.0)))
    [found] = what_if(one, [2], [parse_change("stragglers=none")])
    ratio = found.outcomes[1].ratio
    assert (ratio.value, ratio.low, ratio.high) == (1, 1, 1)


def test_the_changes_of_the_default_list_are_known() -> None:
    assert [parse_change(text).text for text in DEFAULTS] == list(DEFAULTS)


def test_a_refused_group_size_has_a_reason_and_no_outcomes() -> None:
    [found] = what_if(series(), [64], [parse_change("bandwidth=2")])
    assert (found.kind, found.outcomes) == ("refused", ())
    assert found.reason is not None


def test_beside_a_measured_group_stands_how_far_the_simulation_is_off() -> None:
    [found] = what_if(series(), [2], [])
    assert found.simulation_error is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bandwith=2", "Did you mean 'bandwidth'"),
        ("bandwidth", "expected name=value"),
        ("bandwidth=0", "expected a number from 1e-06 to 1,000,000"),
        ("latency=nan", "expected a number from 1e-06 to 1,000,000"),
        ("accumulate=1.5", "expected a whole number"),
        ("gradients=b16", "Did you mean 'bf16'"),
        ("overlap=all", "Known: perfect, none"),
        ("stragglers=2", "expected stragglers=none"),
        ("bucket-cap-mb=x", "expected a number from 1e-06 to 1,000,000"),
    ],
)
def test_a_change_that_there_is_not_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_change(text)
