"""dpbench project, iso and what-if as people call them: what they print and refuse."""

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
from tests.analysis.projection.models import GLOO, swept
from tests.analysis.projection.traces import traced_sweep
from tests.cli.test_explain import stored

TOPOLOGY = ["--topology", "h100-nvswitch-ndr"]
TCP = ["--topology", "tcp-10gbe"]


def with_collectives(folder: Path) -> Path:
    with CollectiveStore.append_to(folder, ["dpbench", "comm"]) as store:
        for repetition in range(3):
            store.append(collective_record(collective_spec(repetition=repetition), GLOO))
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep at two batch sizes with its collectives; the tests only read it."""
    return with_collectives(stored(tmp_path_factory.mktemp("it") / "demo", swept((32, 128))))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep without collectives."""
    return stored(tmp_path_factory.mktemp("it") / "alone", swept())


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr of a command that ends with 2."""
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    return line


def test_project_prints_rows_and_draws_a_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_collectives(stored(tmp_path / "demo", swept()))
    assert run(["project", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "ddp/gloo, batch 32" in printed.out
    assert "Assumed" not in printed.out
    assert printed.err == ""
    assert not (folder / "report").exists()  # a folder that is only read stays as it is
    charts = tmp_path / "charts"
    assert run(["project", str(folder), "--verbose", "--output", str(charts)]) == 0
    printed = capsys.readouterr()
    assert "ddp/gloo, batch 32, on gloo as measured" in printed.out
    assert "Assumed" in printed.out
    chart = charts / "projection.png"
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert f"projection in {chart}" in printed.err
    # One on a network that is given does not take its place.
    options = ["--group-sizes", "8,64", "--output", str(charts)]
    assert run(["project", str(folder), *TOPOLOGY, *options]) == 0
    (name,) = (one for one in TOPOLOGY if not one.startswith("-"))
    assert str(chart.with_stem(f"projection-{name}")) in capsys.readouterr().err
    assert chart.exists()


def test_project_as_json_on_a_given_network_reaches_ten_thousand(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["project", str(alone), *TOPOLOGY, "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["series"]
    assert [row["group_size"] for row in one["rows"]] == [1, 8, 64, 1000, 10_000]
    last = one["rows"][-1]
    assert last["kind"] == "projected"
    assert last["items_per_second"]["value"] > 0


def test_group_sizes_and_series_are_chosen(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--group-sizes", "2,4", "--batch-size", "128", "--implementation", "ddp"]
    assert run(["project", str(measured), "--json", *chosen]) == 0
    [one] = json.loads(capsys.readouterr().out)["series"]
    assert one["batch_size"] == 128
    assert [(row["group_size"], row["kind"]) for row in one["rows"]] == [
        (2, "measured"),
        (4, "extrapolated"),
    ]


def test_a_topology_of_this_machine_is_no_other_network(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["project", str(measured), "--json", "--group-size", "2"]
    assert run([*arguments, "--topology", "this-machine"]) == 0
    series = json.loads(capsys.readouterr().out)["series"]
    assert {one["network"] for one in series} == {"gloo as measured"}


def test_iso_finds_a_batch(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["iso", str(measured), *TOPOLOGY, "--efficiency", "50%", "--group-sizes", "8,64"]
    assert run([*arguments, "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["series"]
    assert one["traced_batch_sizes"] == [32, 128]
    assert [row["group_size"] for row in one["rows"]] == [8, 64]
    assert run(arguments) == 0
    assert "50 % efficiency" in capsys.readouterr().out


def test_iso_of_one_batch_size_is_refused_with_the_command(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["iso", str(alone), *TOPOLOGY], capsys)
    assert "--batch-sizes 32,128" in line


def test_what_if_compares_the_usual_changes_at_the_largest_measured_group(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["what-if", str(measured), "--batch-size", "32", "--verbose"]) == 0
    text = capsys.readouterr().out
    assert "2 replicas (interpolated, n = 3)\nas is, " in text
    for change in ("bandwidth=2", "gradients=bf16", "accumulate=4", "overlap=none"):
        assert f"\n{change} " in text


def test_what_if_takes_changes_of_ones_own(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--change", "bandwidth=2", "--change", "accumulate=8", "--json"]
    assert run(["what-if", str(alone), *TOPOLOGY, *changes]) == 0
    [one] = json.loads(capsys.readouterr().out)["series"]
    [at] = one["group_sizes"]
    assert at["group_size"] == 64
    assert [o["change"] for o in at["changes"]] == ["as is", "bandwidth=2", "accumulate=8"]


def test_changes_that_say_the_same_count_once(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--change", "bandwidth=2", "--change", "bandwidth=2.0", "--change", "gradients=BF16"]
    assert run(["what-if", str(alone), *TOPOLOGY, *changes, "--json"]) == 0
    printed = capsys.readouterr()
    [at] = json.loads(printed.out)["series"][0]["group_sizes"]
    assert [o["change"] for o in at["changes"]][:2] == ["as is", "bandwidth=2"]
    assert len(at["changes"]) == 3
    assert "bandwidth=2.0 is listed twice; it counts once" in printed.err


@pytest.mark.parametrize("named", ["", 'backend = "shm"\n'])
def test_a_topology_takes_no_curve_of_a_backend_that_is_not_its_own(
    named: str, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The curves of the folder are of gloo, which the file does not name."""
    file = tmp_path / "net.toml"
    file.write_text(
        f"""
ranks_per_node = 2
source = "its makers"
date = 2026-01-01
{named}
intra = {{ latency_us = 2, gigabytes_per_second = 20 }}
inter = {{ latency_us = 10, gigabytes_per_second = 10 }}
"""
    )
    arguments = ["project", str(measured), "--topology", str(file), "--json"]
    assert run([*arguments, "--group-size", "2"]) == 0
    for one in json.loads(capsys.readouterr().out)["series"]:
        assert [row["kind"] for row in one["rows"]] == ["projected"]
        assert not any("the curve measured with gloo" in line for line in one["assumptions"])


def test_a_given_network_says_what_computes(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("project", "what-if"):
        assert run([command, str(alone), *TOPOLOGY, "--verbose"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert text.startswith("· replicas compute, and vary, as on ")
        assert "only the network is that of h100-nvswitch-ndr ddp/gloo" in text


@pytest.mark.parametrize("command", ["project", "what-if", "iso"])
def test_if_every_group_size_is_refused_nothing_is_printed(
    command: str, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused([command, str(measured), "--group-size", "64"], capsys)
    assert "the largest group measured is 2" in line


def test_iso_falls_to_the_largest_measured_group(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["iso", str(measured), "--efficiency", "50%", "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["series"]
    assert [row["group_size"] for row in one["rows"]] == [2]
    for batch in (32, 128):
        assert any(f"as traced with ddp/gloo ×1, batch {batch}" in s for s in one["assumptions"])


@pytest.mark.parametrize("command", ["project", "iso", "what-if"])
def test_without_collectives_the_error_has_the_command(
    command: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused([command, str(alone)], capsys)
    assert "dpbench comm --backends gloo --gpus 2 --name alone --results-dir" in line
    assert "--topology NAME" in line


def test_buckets_far_larger_than_any_message_measured_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "demo", swept())
    with CollectiveStore.append_to(folder, ["dpbench", "comm"]) as store:
        store.append(collective_record(collective_spec(sizes_bytes=(1024, 4096)), GLOO))
    line = refused(["project", str(folder)], capsys)
    assert "all_reduce on gloo was measured up to 4 KiB" in line
    assert "dpbench comm --backends gloo --sizes 4B-256MB" in line


def test_without_a_trace_the_error_has_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "demo", weak_sweep())
    assert "dpbench sweep --arch mnist_cnn" in refused(["project", str(folder), *TOPOLOGY], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["project", "--topology", "h100-nvswitch-ndx"], "Did you mean 'h100-nvswitch-ndr'"),
        (["project", "--group-sizes", "0"], "'0' is not a positive integer"),
        (["project", "--group-sizes", "99999999"], "expected at most 10,000,000"),
        (["project", "--implementations", "dp"], "dpbench fit describes it by a law"),
        (["project", "--batch-sizes", "64"], "no such series; there are ddp/gloo, batch 32"),
        (["project", "--bucket-cap-mb", "0"], "--bucket-cap-mb: '0' is not a positive number"),
        (["project", "--bucket-cap-mb", "1e9"], "expected 0.001 to 1e+06"),
        (["iso", "--efficiency", "90"], "written as in 90% or 99.5%"),
        (["what-if", "--change", "latency=1e308"], "expected a number from 1e-06 to 1,000,000"),
        (["what-if", "--change", "bandwidth=1e-308"], "expected a number from 1e-06"),
        (["what-if", "--change", "bandwidth=2,latency=2"], "for several changes repeat --change"),
        (["what-if", "--change", "stragglers=yes"], "expected stragglers=none"),
        (["what-if", "--change", "bandwith=2"], "Did you mean 'bandwidth'"),
        (["what-if", "--change", "overlap"], "expected name=value"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert words in refused([command, str(alone), *options], capsys)


@pytest.mark.parametrize("command", ["project", "iso", "what-if"])
def test_a_folder_that_is_none_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not exist" in refused([command, str(tmp_path / "nothing")], capsys)


@pytest.mark.parametrize("command", ["project", "what-if", "iso", "fit", "explain"])
def test_an_answer_is_short_unless_more_is_asked_for(
    command: str, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, str(measured)]
    assert run(words) == 0
    short = capsys.readouterr().out
    assert run([*words, "--verbose"]) == 0
    whole = capsys.readouterr().out
    assert short.splitlines()[-1].endswith("--verbose")
    assert len(short.splitlines()) < len(whole.splitlines()) / 1.5
    assert "--verbose" not in whole


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """A sweep with traces at one batch size, which a test may add collectives to."""
    return stored(tmp_path / "demo", [record for i in range(3) for record in traced_sweep(i)])


def with_fast_collectives(folder: Path, backend: str = "gloo") -> Path:
    with CollectiveStore.append_to(folder, ["dpbench", "comm"]) as store:
        store.append(collective_record(collective_spec(backend=backend), affine(1e-5, 4e9)))
    return folder


def test_project_takes_the_collectives_of_another_folder(
    traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = with_fast_collectives(tmp_path / "comm")
    assert run(["project", "-v", str(traced), "--comm", str(other)]) == 0
    assert "on gloo as measured" in capsys.readouterr().out


def test_a_backend_without_collectives_is_refused(
    traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_fast_collectives(traced, backend="shm")
    assert "dpbench comm --backends gloo" in refused(["project", str(folder)], capsys)


def test_a_sweep_without_a_series_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "demo", weak_sweep()[:2])
    assert "no series that can be simulated" in refused(["project", str(folder)], capsys)
