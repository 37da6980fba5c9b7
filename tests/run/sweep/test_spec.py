"""Options become the sweep of a host, or of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.launch.cluster import Node
from dpbench.launch.machine import Machine
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import Accelerator
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import SweepSpec
from tests.builders import HERE

GPU = Accelerator(index=0, name="H200", memory_bytes=2**37)


def node(*devices: str, cores: int = 4, gpus: tuple[Accelerator, ...] = ()) -> Node:
    machine = Machine(environment=replace(HERE, cores=cores, accelerators=gpus))
    return Node(number=0, machine=machine, devices=devices, common={})


def built(*hosts: Node, **options: str) -> SweepSpec:
    parsed = SweepOptions(**{"arch": "mlp", "data": "digits", **options})
    return build_sweep_spec(parsed, hosts)


@pytest.mark.parametrize(
    ("replicas", "sizes"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])],
)
def test_group_sizes_default_to_all_up_to_four_and_above_to_powers_of_two_and_the_largest(
    replicas: int, sizes: list[int]
) -> None:
    planned = built(node(*["cpu"] * replicas, cores=replicas)).configurations
    assert [*dict.fromkeys(each.group_size for each in planned)] == sizes
    alone = {each.implementation for each in planned if each.group_size == 1}
    assert alone == ({"single"} if replicas > 1 else {"single", "dp", "ddp", "torch-ddp"})


def test_the_group_size_max_is_all_replicas() -> None:
    four = node(*["cpu"] * 4)
    assert built(four, group_sizes="max").group_sizes == (4,)
    assert built(four, group_sizes="1,max").group_sizes == (1, 4)
    assert built(node("cpu"), group_sizes="max,1").group_sizes == (1,)


def test_threads_are_those_that_every_host_has() -> None:
    hosts = node("cpu", "cpu"), node("cpu", "cpu", cores=2)
    spec = built(*hosts)
    assert (spec.group_sizes, spec.devices_by_node) == ((2, 3, 4), (2, 2))
    assert spec.axes["threads"] == (1,)
    assert built(hosts[0], node("cpu", cores=2)).axes["threads"] == (2,)


def test_a_group_is_no_larger_than_all_hosts_together() -> None:
    hosts = node("cpu", "cpu"), node("cpu")
    assert built(*hosts, group_sizes="3").group_sizes == (3,)
    with pytest.raises(UsageError, match=r"4 is above the 3 replicas of all nodes \(2 \+ 1\)"):
        built(*hosts, group_sizes="4")


@pytest.mark.parametrize(
    ("given", "seconds", "steps"),
    [
        ({}, 1.0, 12),
        ({"prefetch": "2"}, None, 50),
        ({"sync_every": "4,3", "implementations": "local-sgd"}, None, 60),
        ({"steps": "8,9"}, None, 8),
        ({"warmup": "5,1"}, None, 50),
    ],
)
def test_windows_that_cannot_fill_a_time_have_a_number_of_steps_in_whole_periods(
    given: dict[str, str], seconds: float | None, steps: int
) -> None:
    spec = built(node("cpu"), **given)
    assert (spec.window_seconds, spec.axes["steps"][0]) == (seconds, steps)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("variable", "gpus", "threads"), [("4,2", (), 4), ("", (), 1), ("0", (), 1), ("8", (GPU,), 8)]
)
def test_the_threads_of_a_script_are_the_first_that_openmp_is_given(
    variable: str, gpus: tuple[Accelerator, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    Path("train.py").touch()
    spec = build_sweep_spec(SweepOptions(script="train.py"), [node("cpu", gpus=gpus)])
    assert (spec.axes["threads"], spec.window_seconds) == ((threads,), 0.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with pytest.raises(UsageError, match=r"^OMP_NUM_THREADS 5: 5 × 1 replicas are more than"):
        build_sweep_spec(SweepOptions(script="train.py"), [node("cpu")])


@pytest.mark.usefixtures("here")
def test_a_script_that_calls_its_own_make_is_no_model_file() -> None:
    Path("train.py").write_text("def make():\n    ...\n\nTrainer().fit(make())\n")
    build_sweep_spec(SweepOptions(script="train.py"), [node("cpu")])
    Path("model.py").write_text("def make():\n    return optim()\n")
    with pytest.raises(UsageError, match=r"^model\.py makes a model and trains nothing; "):
        build_sweep_spec(SweepOptions(script="model.py"), [node("cpu")])


def test_a_scaled_learning_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--lr-scaling linear: the scaled learning rate is inf"):
        built(node("cpu", "cpu"), lr="1e308", lr_scaling="linear")
