"""Every wrong value is refused before anything starts: one line, exit status 2, no folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.records.environment import usable_cores
from dpbench.records.trial import SCHEMA_VERSION

CORES = usable_cores()
TOO_MANY = str(CORES + 1)
NODE = "--nnodes 2 --node-rank 0 --rdzv-endpoint"

CASES = [
    ("--batch-sizes 32,abc", "--batch-sizes: got 'abc' in 32,abc; expected a whole number, 1 or"),
    ("--batch-sizes -1", "--batch-sizes: got '-1'; expected a whole number"),
    ("--batch-sizes 32,,64", "no empty entry"),
    (
        "--backends gloo,foo",
        "--backends: got 'foo' in gloo,foo; did you mean 'gloo'? expected one of gloo",
    ),
    ("--sync-backend glooo", "did you mean 'gloo'?"),
    ("--sync-every 4", "an option of local-sgd, but --implementations are dp, ddp, torch-ddp,"),
    ("--sync-every 4 --steps 5 --implementations local-sgd", "--steps to be a multiple of 4"),
    ("--backends gloo --implementations dp", "none of the implementations dp has a choice"),
    (
        "--bucket-cap-mb 5 --implementations dp",
        "an option of ddp, ddp-sharded, torch-ddp, torch-ddp-static",
    ),
    ("--bucket-cap-mb 1e7", "--bucket-cap-mb: got '1e7'; expected a number above 0 up to 1,000"),
    ("--lr-scaling liner", "did you mean 'linear'?"),
    ("--implementations ddp,torch_ddp", "did you mean 'torch-ddp'?"),
    ("--gpus 0", "--gpus: got '0'; expected a number of GPUs, or distinct ids"),
    ("--gpus 0,0", "an id is listed twice"),
    ("--gpus 0,99", "no device 99"),
    (f"--gpus {TOO_MANY}", "add --oversubscribe"),
    ("--gpus 1 --group-sizes 2", "--group-sizes: 2 is above --gpus 1; expected at most 1"),
    (f"--group-sizes {TOO_MANY}", "add --oversubscribe"),
    ("--scaling strong --batch-sizes 1 --group-sizes 2", "smaller than the group of 2"),
    ("--scaling sideways", "--scaling: got 'sideways'; expected one of weak, strong"),
    ("--steps 0", "--steps: got '0'; expected a whole number, 1 or more, or auto"),
    ("--warmup -1", "--warmup: got '-1'; expected a whole number, 0 or more"),
    ("--repetitions 0", "--repetitions: got '0'; expected a whole number, 1 to 10,000"),
    ("--precision 1% --repetitions 1", "an interval needs at least 2 repetitions"),
    ("--budget 1m", "--budget is for --precision; add it"),
    ("--threads 999", "more than the"),
    ("--dtypes f16", "it needs a GPU"),
    ("--data-workers 2", "expected --prefetch with a number from 1 on"),
    ("--nnodes 2", "--nnodes 2 needs --node-rank: 0 on the node that records"),
    ("--node-rank 0", "--node-rank is for several nodes; add --nnodes, or leave"),
    ("--nnodes 2 --node-rank 2", "--node-rank 2: expected from 0 to 1, as --nnodes is 2"),
    ("--nnodes 2 --node-rank 0", "needs --rdzv-endpoint: where node 0 can be reached"),
    (f"{NODE} a", "--rdzv-endpoint 'a': no port; expected HOST:PORT, as in host0:29503"),
    ("--lr nan", "--lr: got 'nan'; expected a number above 0"),
    ("--time-limit soon", "--time-limit: got 'soon'; expected a duration"),
    ("--optimizer sdg", "did you mean 'sgd'?"),
    ("--exclude group_size", "expected one value for group_size"),
    ("--arch mnist_cn", "unknown architecture 'mnist_cn'. Did you mean 'mnist_cnn'?"),
    ("--arch nowhere:Model", "no module 'nowhere' found"),
    ("--data digit", "--data: got 'digit'; did you mean 'digits'?"),
    ("--data mnist --data-dir empty", "train-images-idx3-ubyte"),
    ("--batch-sizes 2000 --gpus 1", "2000 is more than the 1797 samples of digits"),
    ("--name a/b", "--name 'a/b': expected a plain folder name"),
    ("--resume", "--resume needs the --name"),
    ("--resume --name absent", "does not exist"),
    ("--retry failed", "--retry goes with --resume"),
    ("--stepss 5", "No such option: --stepss"),
    ("--preset quik", "Did you mean 'quick'?"),
]


@pytest.fixture
def here(here: Path) -> Path:
    (here / "empty").mkdir()
    return here


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[case for case, _ in CASES])
def test_a_wrong_value_is_one_line_and_exit_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert run(["sweep", *arguments.split(" ")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert message in last
    assert "Traceback" not in err
    assert all(line.startswith("dpbench: ") for line in err.splitlines())
    assert not (here / "results").exists()


def test_an_empty_list_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--batch-sizes", ""]) == 2
    assert "--batch-sizes: got ''; expected a comma-separated list" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_a_value_that_is_listed_twice_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "--batch-sizes", "8,8", "--dry-run"]
    assert run(arguments) == 0
    assert "--batch-sizes: 8 is listed twice; it counts once" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_cpu_is_another_name_for_shm(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "--sync-backend", "cpu", "--implementations", "ddp"]
    assert run([*arguments, "--dry-run"]) == 0
    assert " shm " in capsys.readouterr().out


SMALL = ["--batch-sizes", "4", "--steps", "3", "--quiet", "--no-charts"]


def sweep_named(name: str, *arguments: str) -> int:
    return run(["sweep", "--name", name, *SMALL, *arguments])


@pytest.mark.usefixtures("synthetic")
def test_an_existing_name_is_not_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep_named("one") == 0
    before = (here / "results/one/trials.jsonl").read_bytes()
    assert sweep_named("one") == 2
    assert "results/one exists already" in capsys.readouterr().err
    assert (here / "results/one/trials.jsonl").read_bytes() == before


@pytest.mark.usefixtures("synthetic")
def test_resuming_another_sweep_names_the_difference(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep_named("one") == 0
    assert sweep_named("one", "--resume", "--steps", "4") == 2
    assert "--steps: 3 -> 4" in capsys.readouterr().err


def test_a_folder_that_is_no_result_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(here)]) == 2
    assert "is not a results folder" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_a_file_cut_off_in_its_last_line_is_read_with_a_warning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep_named("one") == 0
    path = here / "results/one/trials.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert run(["report", "results/one", "--no-charts"]) == 0
    assert "the last line is cut off" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("synthetic")
@pytest.mark.parametrize("command", ["explain {}", "compare {} {}-2", "check {} --baseline {}-2"])
def test_what_could_not_be_read_is_told_alike_by_every_command(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert sweep_named("one") == sweep_named("one-2") == 0
    path = here / "results/one/trials.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    capsys.readouterr()
    run(command.replace("{}", "results/one").split())
    warning = "dpbench: warning: results/one/trials.jsonl: the last line is cut off"
    assert capsys.readouterr().err.startswith(warning)


@pytest.mark.usefixtures("synthetic")
def test_a_newer_schema_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_named("one") == 0
    path = here / "results/one/trials.jsonl"
    now, later = (f'"schema_version":{version}' for version in (SCHEMA_VERSION, SCHEMA_VERSION + 1))
    path.write_text(path.read_text().replace(now, later))
    assert run(["report", "results/one"]) == 2
    assert "Upgrade dpbench" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_a_results_folder_that_cannot_be_made_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(here / "empty")
    (here / "empty").write_text("a file")
    assert run(["sweep", *SMALL, "--results-dir", "empty"]) == 2
    assert "cannot make" in capsys.readouterr().err


def test_a_question_ends_without_a_full_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["swep"]) == 2
    end = "Did you mean 'sweep'? See dpbench --help.\n"
    assert capsys.readouterr().err.endswith(end)
