"""The plan of a sweep: which configurations there are, and the order of their trials."""

from __future__ import annotations

from collections import Counter

import pytest

from dpbench.codec import decode, encode
from dpbench.errors import FileError
from dpbench.specs import SweepSpec
from tests.builders import sweep_spec


def test_the_order_is_a_palindrome_over_repetitions() -> None:
    trials = [configuration for configuration, _ in sweep_spec(repetitions=3).trials]
    third = len(trials) // 3
    first, second, last = trials[:third], trials[third : 2 * third], trials[2 * third :]
    assert second == first[::-1]
    assert last == first


def test_the_plain_module_is_the_baseline_of_every_sweep() -> None:
    planned = sweep_spec(implementations=("ddp",), group_sizes=(2,)).configurations
    singles = [one for one in planned if one.implementation == "single"]
    assert [(one.group_size, one.batch_size) for one in singles] == [(1, 4), (1, 8)]
    assert {one.group_size for one in planned if one.implementation == "ddp"} == {2}


def test_copies_that_do_not_communicate_are_measured_at_the_largest_size_by_default() -> None:
    spec = sweep_spec(implementations=("independent",), largest_group_only=("independent",))
    assert {c.group_size for c in spec.configurations if c.implementation == "independent"} == {2}


def test_implementations_without_a_process_group_are_not_multiplied_by_backends() -> None:
    planned = sweep_spec(backends=("gloo", "nccl"), batch_size=(4,)).configurations
    seen = [(one.implementation, one.backend, one.group_size) for one in planned]
    assert sorted(seen) == [
        ("ddp", "gloo", 1),
        ("ddp", "gloo", 2),
        ("ddp", "nccl", 1),
        ("ddp", "nccl", 2),
        ("dp", "threads", 1),
        ("dp", "threads", 2),
        ("single", "none", 1),
    ]


def test_sizes_within_a_node_come_before_those_across() -> None:
    spec = sweep_spec(
        implementations=("ddp",),
        batch_size=(4,),
        group_sizes=(1, 2, 3, 4),
        devices=("cuda:0", "cuda:1", "cuda:0", "cuda:3"),
        devices_by_node=(2, 2),
        repetitions=1,
    )
    planned = [one for one in spec.configurations if one.implementation == "ddp"]
    assert [one.replicas_by_node for one in planned] == [(), (), (2, 1), (2, 2)]
    assert [one.devices for one in planned] == [spec.devices[:size] for size in (1, 2, 3, 4)]


def test_a_setting_that_an_implementation_has_not_gives_it_no_configuration_of_its_own() -> None:
    spec = sweep_spec(
        implementations=("dp", "ddp", "local-sgd"),
        group_sizes=(2,),
        batch_size=(4,),
        bucket_cap_mb=(1.0, 25.0),
        comm_hook=("none", "bf16"),
        sync_every=(1, 2),
        repetitions=1,
    )
    counts = Counter(one.implementation for one in spec.configurations)
    assert counts == {"single": 1, "dp": 1, "ddp": 4, "local-sgd": 2}


def test_workers_are_compared_only_where_they_have_something_to_load() -> None:
    spec = sweep_spec(prefetch=(None, 0, 2), data_workers=(None, 1), batch_size=(4,))
    singles = [each for each in spec.configurations if each.implementation == "single"]
    loading = [(each.prefetch, each.data_workers) for each in singles]
    assert loading == [(None, None), (0, None), (2, None), (2, 1)]


def test_a_stored_sweep_has_the_default_of_an_axis_that_was_added_since() -> None:
    spec = sweep_spec()
    stored = encode(spec)
    del stored["axes"]["overlap"]
    assert decode(SweepSpec, stored) == spec
    stored["axes"]["unknown"] = [1]
    with pytest.raises(FileError, match="expected the axes batch_size, architecture, "):
        decode(SweepSpec, stored)
