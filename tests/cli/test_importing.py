"""`dpbench import`: what other tools printed, through the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dpbench.cli.app import run
from tests.analysis.imported.nccl_log import log, row

HOROVOD = """\
Model: resnet50
Batch size: 32
Iter #0: 260.0 img/sec per GPU
Iter #1: 264.0 img/sec per GPU
Img/sec per GPU: 262.0 +-3.9
Total img/sec on 1 GPU(s): 262.0 +-3.9
Model: resnet50
Batch size: 32
Total img/sec on 4 GPU(s): 1010.0 +-5.2
"""
TORCH_DDP = "Backend | Proc Group | Batch | Images/s |\ngloo | 1 | 32 | 10.0 |\n"
NCCL = log(
    row(1024, (38.3, 37.5), 7 / 4, kind="<b>\x07[1m sum -1"), row(2**20, (69.31, 68.8), 7 / 4)
)


@pytest.fixture
def here(here: Path) -> Path:
    (here / "run.log").write_text(HOROVOD)
    (here / "table.txt").write_text(TORCH_DDP)
    (here / "nccl.txt").write_text(NCCL)
    return here


def test_an_imported_log_is_the_table_that_its_csv_file_gives(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "horovod", "run.log", "--output", "out.csv"]) == 0
    printed, said = capsys.readouterr()
    assert said == "dpbench: written to out.csv\n"
    assert run(["report", "out.csv"]) == 0
    in_the_log = "· +- in the log is the spread of its iterations, no interval of their mean\n"
    assert capsys.readouterr().out == printed.replace(in_the_log, "")
    assert in_the_log in printed
    assert "All 2 rows: batch 32" in printed
    assert printed.splitlines()[4].split()[:2] == ["horovod", "1"]
    assert "262 ± 27" in printed  # a t interval of two iterations


def test_speeds_take_the_formats_of_the_report(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "torch-ddp", "table.txt", "--format", "json"]) == 0
    (row_of_json,) = json.loads(capsys.readouterr().out)
    assert (row_of_json["implementation"], row_of_json["images_per_second"]) == (
        *("torch-ddp.rb", 10.0),
    )
    assert row_of_json["images_per_second_low"] is None


def test_collectives_have_a_table_and_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 MiB in 69.31 µs is 15.13 GB/s, and 26.48 GB/s of busbw at 8 ranks."""
    assert run(["import", "nccl-tests", "nccl.txt", "--output", "out.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all_reduce on nccl ×8, out of place, <b> [1m sum, 1 host, NVIDIA A100"
    found = [line.split() for line in lines if line.startswith("1,048,576")]
    assert found[0] == ["1,048,576", "262,144", "69.31", "15.13", "26.48"]
    assert any("single values (n = 1) without an interval" in line for line in lines)
    with (here / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert float(rows[2]["seconds"]) == pytest.approx(69.31e-6)
    assert rows[2]["backend"] == "nccl"
    assert run(["import", "nccl-tests", "nccl.txt", "--format", "json"]) == 0
    assert [one["nbytes"] for one in json.loads(capsys.readouterr().out)] == [
        *(1024, 1024, 2**20, 2**20),
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nccl", "nccl.txt"], "unknown tool 'nccl'. Did you mean 'nccl-tests'?"),
        (["horovod", "nccl.txt"], "nccl.txt: no line 'Total img/sec on N GPU(s): …' in it"),
        (["horovod", "nowhere"], "cannot read nowhere: No such file or directory"),
        (["horovod", "run.log", "--collective", "broadcast"], "horovod measures none"),
        (["horovod", "run.log", "--output", "out.json"], "expected a file name that ends in .csv"),
        (["horovod", "run.log", "--output", "no/out.csv"], "cannot write no/out.csv"),
        (["horovod", "run.log", "--format", "excel"], "unknown format 'excel'"),
        (["nccl-tests", "nccl.txt", "--format", "latex"], "unknown format of collectives 'latex'"),
        (["nccl-tests", "nccl.txt", "--collective", "gather"], "the log names all_reduce_perf"),
    ],
)
def test_what_cannot_be_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    assert run(["import", *words]) == 2
    message = capsys.readouterr().err
    assert message.startswith("dpbench: ")
    assert error in message
    assert message.count("\n") == 1
