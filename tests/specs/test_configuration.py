from __future__ import annotations

import dataclasses
import math
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.codec import differing_fields
from dpbench.specs.axes import GRID
from dpbench.specs.nodes import fill_nodes
from dpbench.specs.workload import scale_lr
from tests.builders import WORKLOAD, configuration, script_configuration, sweep_spec

SIZES = st.integers(min_value=1, max_value=64)


@pytest.mark.parametrize(
    ("changes", "traced"),
    [
        ({"group_size": 1}, True),
        ({"group_size": 1, "implementation": "local-sgd"}, True),
        ({"group_size": 1, "is_instrumented": False}, False),
        ({"group_size": 1, "implementation": "dp", "backend": "threads"}, False),
        ({"group_size": 2, "implementation": "independent", "backend": "none"}, False),
    ],
)
def test_gradients_are_traced_where_they_meet_no_others(
    changes: dict[str, object], traced: bool
) -> None:
    assert configuration(**changes).traces_gradients is traced


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        ({"group_size": 2, "accumulate": 2}, "linear", 0.04),
        ({"group_size": 2, "accumulate": 2}, "sqrt", 0.02),
        ({"group_size": 2, "accumulate": 2}, "none", 0.01),
        ({"group_size": 4, "scaling": "strong", "batch_size": 8}, "linear", 0.01),
        ({"group_size": 4, "scaling": "strong", "accumulate": 3}, "linear", 0.03),
        ({"group_size": 4, "implementation": "independent"}, "linear", 0.01),
        ({"group_size": 4, "implementation": "independent", "scaling": "strong"}, "sqrt", 0.005),
    ],
)
def test_the_learning_rate_follows_the_samples_behind_a_step(
    changes: dict[str, object], rule: str, expected: float
) -> None:
    """0.01 belongs to the batch; independent copies step on their own share of it only."""
    workload = dataclasses.replace(WORKLOAD, lr_scaling=rule)
    assert configuration(workload=workload, **changes).scaled_lr == pytest.approx(expected)


@given(batch=SIZES, group=SIZES, scaling=st.sampled_from(["weak", "strong"]))
def test_the_shards_of_all_ranks_tile_the_global_batch(
    batch: int, group: int, scaling: str
) -> None:
    """Strong scaling splits it exactly, into sizes that differ by at most one."""
    settings = configuration(batch_size=batch, group_size=group, scaling=scaling)
    taken = [settings.sample_range(rank) for rank in range(group)]
    sizes = settings.replica_batch_sizes
    assert [*chain(*taken)] == [*range(settings.global_batch_size)]
    assert settings.global_batch_size == (batch if scaling == "strong" else batch * group)
    assert tuple(map(len, taken)) == sizes
    assert max(sizes) - min(sizes) <= 1


def test_the_one_process_of_dp_takes_the_whole_global_batch() -> None:
    settings = configuration(implementation="dp", backend="threads", batch_size=4)
    assert (settings.process_count, settings.sample_range(0)) == (1, range(8))


@pytest.mark.parametrize(
    ("batch", "accumulate", "group", "effective"), [(2, 4, 2, 16), (32, 4, 1, 128)]
)
def test_the_effective_batch_is_the_seeds_example(
    batch: int, accumulate: int, group: int, effective: int
) -> None:
    settings = configuration(batch_size=batch, accumulate=accumulate, group_size=group)
    assert settings.effective_batch_size == effective


def test_differing_fields_are_named_with_both_values() -> None:
    ours, theirs = sweep_spec(group_sizes=(1,)), sweep_spec()
    assert differing_fields(ours, theirs) == ["group_sizes: [1, 2] -> [1]"]


def test_a_script_decides_all_that_no_placeholder_stands_for() -> None:
    settings = script_configuration(Path("train.py"), "--lr={lr}", threads=2)
    known = {name: value for name in GRID if (value := settings.setting(name)) is not None}
    steps = {"warmup": 4, "steps": 10, "threads": 2}
    assert known == {"architecture": "train.py", "lr": 0.01, **steps}


def test_a_replica_is_on_its_node() -> None:
    devices = ("cuda:0", "cuda:1", "cuda:0")
    settings = configuration(group_size=3, replicas_by_node=(2, 1), devices=devices)
    assert [node for node, _ in settings.node_devices] == [0, 0, 1]
    assert settings.node_devices == ((0, "cuda:0"), (0, "cuda:1"), (1, "cuda:0"))
    assert settings.device_name(2) == "cuda:0 on node 1"
    assert settings.of_one_replica == configuration(group_size=1, devices=("cuda:0",))


def test_a_group_fills_one_node_after_the_other() -> None:
    assert [fill_nodes(n, (2, 3)) for n in range(1, 6)] == [(1,), (2,), (2, 1), (2, 2), (2, 3)]
    with pytest.raises(ValueError, match="6 replicas on nodes that offer 5"):
        fill_nodes(6, (2, 3))


@pytest.mark.parametrize(("rule", "expected"), [("linear", 8e-5), ("sqrt", 4e-5), ("none", 2e-5)])
def test_four_times_the_batch_of_a_fine_tuning(rule: str, expected: float) -> None:
    assert scale_lr(2e-5, 4, rule) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "2e-5", None])
def test_only_finite_numbers_above_zero_are_scaled(value: float) -> None:
    with pytest.raises(ValueError, match=r"base is .*; expected a finite number above 0"):
        scale_lr(value, 2, "linear")
    with pytest.raises(ValueError, match=r"ratio is .*; expected a finite number above 0"):
        scale_lr(0.1, value, "none")
    with pytest.raises(ValueError, match="scaled learning rate is inf"):
        scale_lr(1e300, 1e300, "linear")


def test_an_unknown_rule_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'cubic'; expected one of none, linear, sqrt"):
        scale_lr(0.1, 2, "cubic")


def test_steps_in_which_ranks_agree_on_overflows_are_not_timed_unsynced() -> None:
    f16 = dataclasses.replace(WORKLOAD, dtype="f16")
    for name, expected in (("local-sgd", False), ("ddp", True)):
        assert configuration(implementation=name, workload=f16).has_unsynced_window == expected
        assert configuration(implementation=name).has_unsynced_window
