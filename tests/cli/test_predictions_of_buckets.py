"""dpbench buckets as people call it: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.store import CollectiveStore
from tests.analysis.builders import weak_sweep
from tests.analysis.communication.collective_records import (
    affine,
    collective_record,
    collective_spec,
)
from tests.analysis.projection.traces import traced_sweep
from tests.cli.test_explain import stored

TOPOLOGY = ["--topology", "tcp-10gbe"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stored(tmp_path / "demo", [record for i in range(3) for record in traced_sweep(i)])


def with_collectives(folder: Path, backend: str = "gloo") -> Path:
    with CollectiveStore.append_to(folder, ["dpbench", "comm"]) as store:
        store.append(collective_record(collective_spec(backend=backend), affine(1e-5, 4e9)))
    return folder


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only one on stderr."""
    [text] = capsys.readouterr().err.splitlines()
    return text


def test_collectives_of_the_folder_itself_are_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(with_collectives(folder))]) == 0
    out = capsys.readouterr().out
    assert "→ 1 MiB would save" in out
    assert "less than the simulation was off here:\n  measure it before it is taken" in out


def test_collectives_of_another_folder_are_used(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = with_collectives(tmp_path / "comm")
    assert run(["buckets", "-v", str(folder), "--comm", str(other)]) == 0
    assert "→ 1 MiB would save" in capsys.readouterr().out


def test_a_topology_takes_the_place_of_collectives(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(folder), *TOPOLOGY]) == 0
    assert "tcp-10gbe: nodes of 1 rank" in capsys.readouterr().out


def test_this_machine_is_no_other_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "buckets",
        "--verbose",
        str(with_collectives(folder)),
        "--topology",
        "this-machine",
    ]
    assert run(arguments) == 0
    assert "measured 20.000 ± 0 ms a step" in capsys.readouterr().out


def test_a_step_of_another_network_is_compared_with_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured ran on gloo's network, whose collectives are in the same folder."""
    arguments = [
        "buckets",
        "--verbose",
        str(with_collectives(folder)),
        "--topology",
        "h100-nvswitch-ndr",
    ]
    assert run([*arguments, "--group-size", "2"]) == 0
    assert "a step (n = " not in capsys.readouterr().out


def test_on_a_topology_any_group_size_can_be_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(folder), *TOPOLOGY, "--group-sizes", "1000,16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["configurations"]
    assert [(one["group_size"], one["kind"]) for one in found] == [
        (16, "projected"),
        (1000, "projected"),
    ]
    assert [one["measured_step_seconds"] for one in found] == [None, None]


def test_a_larger_group_is_extrapolated_as_project_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(with_collectives(folder)), "--group-size", "4", "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["configurations"]
    assert (one["group_size"], one["kind"]) == (4, "extrapolated")


def test_without_collectives_the_error_has_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(folder)]) == 2
    said = line(capsys)
    assert "dpbench comm --backends gloo --gpus 2 --name demo --results-dir" in said
    assert "--comm DIR2 or --topology NAME" in said


def test_without_a_trace_the_error_has_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "demo", weak_sweep())
    assert run(["buckets", "-v", str(folder), *TOPOLOGY]) == 2
    assert "measure it with dpbench sweep --arch mnist_cnn" in line(capsys)


def test_a_backend_without_collectives_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(with_collectives(folder, backend="shm"))]) == 2
    assert "dpbench comm --backends gloo" in line(capsys)


def test_a_sweep_without_buckets_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "demo", weak_sweep()[:2])
    assert run(["buckets", "-v", str(folder)]) == 2
    assert "no series that can be simulated" in line(capsys)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch-size", "64"], "no such series; there are ddp/gloo, batch 32"),
        (["--implementation", "local-sgd"], "local-sgd is not simulated, which ddp, torch-ddp"),
        (["--backend", "glo"], "Did you mean 'gloo'?"),
        (["--group-size", "two"], "not a positive integer"),
        (["--group-size", "1", *TOPOLOGY], "1 replica sends no buckets"),
        (["--topology", "tcp-10gb"], "Did you mean 'tcp-10gbe'?"),
        (["--comm", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_values_are_one_line(
    folder: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["buckets", "-v", str(folder), *options]) == 2
    assert words in line(capsys)
