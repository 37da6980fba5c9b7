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
    ("--batch-sizes 32,abc", "--batch-sizes: 'abc' is not a positive integer"),
    ("--batch-sizes 0", "--batch-sizes: '0' is not a positive integer"),
    ("--batch-sizes -1", "--batch-sizes: '-1' is not a positive integer"),
    ("--batch-size 1.5", "--batch-sizes: '1.5' is not a positive integer"),
    ("--batch-sizes 32,,64", "has an empty entry"),
    ("--batch-sizes ٣", "'٣' is not a positive integer"),
    ("--backends gloo,foo", "unknown value for --backends: 'foo'."),
    ("--backends glo", "Did you mean 'gloo'?"),
    ("--sync-backend glooo", "Did you mean 'gloo'?"),
    ("--sync-backend shmm", "Did you mean 'shm'?"),
    ("--sync-every 4", "an option of local-sgd, but --implementations are dp, ddp; add local-sgd"),
    ("--sync-every 4 --steps 5 --implementations local-sgd", "--steps to be a multiple of 4"),
    ("--backends gloo --sync-backend cpu", "two names of one option; give one of them"),
    ("--backends gloo --implementations dp", "none of the implementations dp has a choice"),
    (
        "--sync-backend cpu --implementations dp",
        "--sync-backend cpu: none of the implementations dp has a choice of backend; add one that "
        "has, such as ddp, or leave --sync-backend out",
    ),
    ("--sync-every 0 --implementations local-sgd", "--sync-every: '0' is not a positive integer"),
    (
        "--bucket-cap-mb 5 --implementations dp",
        "an option of ddp, ddp-sharded, torch-ddp, torch-ddp-static",
    ),
    ("--bucket-cap-mb 0", "--bucket-cap-mb: '0' is not a positive number"),
    ("--bucket-cap-mb 1e7", "--bucket-cap-mb 1e+07: expected at most 1,000,000 MiB"),
    ("--lr-scaling liner", "Did you mean 'linear'?"),
    ("--gradient-steps -1", "--gradient-steps: '-1' is not an integer of at least 0"),
    ("--implementations ddp,torch_ddp", "Did you mean 'torch-ddp'?"),
    ("--gpus 0", "--gpus: '0' is not a positive integer"),
    ("--gpus -1", "--gpus: '-1' is not a positive integer"),
    ("--gpus x", "--gpus: 'x' is not a positive integer"),
    ("--gpus 0,0", "--gpus 0,0: device 0 is listed twice"),
    ("--gpus 0,x", "--gpus: 'x' is not an integer of at least 0"),
    ("--gpus 0,99", "no device 99"),
    (f"--gpus {TOO_MANY}", "add --oversubscribe"),
    ("--gpus 1 --group-sizes 2", "--group-sizes: 2 is above --gpus 1; expected at most 1"),
    ("--group-sizes 0", "--group-sizes: '0' is not a positive integer"),
    (f"--group-sizes {TOO_MANY}", "add --oversubscribe"),
    ("--scaling strong --batch-sizes 1 --group-sizes 2", "smaller than the group of 2"),
    ("--scaling sideways", "unknown value for --scaling: 'sideways'. Known: weak, strong"),
    ("--steps 0", "--steps: '0' is not a positive integer"),
    ("--steps many", "--steps: 'many' is not a positive integer"),
    ("--warmup -1", "--warmup: '-1' is not an integer of at least 0"),
    ("--repetitions 0", "--repetitions: '0' is not a positive integer"),
    ("--accumulate 0", "--accumulate: '0' is not a positive integer"),
    ("--threads 0", "--threads: '0' is not a positive integer"),
    ("--threads 999", "more than the"),
    ("--nnodes 0", "--nnodes: '0' is not a positive integer"),
    ("--nnodes a", "--nnodes: 'a' is not a positive integer"),
    ("--nnodes 1:2:3", "--nnodes: '1:2:3' is not a positive integer"),
    ("--nnodes 1:4", "a sweep measures given sizes: expected one number, as in --nnodes 4"),
    ("--nnodes 2000", "--nnodes 2000: expected at most 1024"),
    ("--nnodes 2", "--nnodes 2 needs --node-rank: 0 on the node that records"),
    ("--node-rank 0", "--node-rank is for several nodes; add --nnodes, or leave"),
    ("--nnodes 1 --node-rank 1", "--node-rank 1: expected 0, as --nnodes is 1"),
    ("--nnodes 2 --node-rank 2", "--node-rank 2: expected from 0 to 1, as --nnodes is 2"),
    ("--nnodes 2 --node-rank -1", "--node-rank: '-1' is not an integer of at least 0"),
    ("--nnodes 2 --node-rank 0", "needs --rdzv-endpoint: where node 0 can be reached"),
    ("--rdzv-endpoint a:1", "--rdzv-endpoint is for several nodes"),
    (f"{NODE} a", "--rdzv-endpoint 'a': no port; expected HOST:PORT, as in host0:29503"),
    (f"{NODE} :29503", "'' is not a host"),
    (f"{NODE} a:", "'' is not a port"),
    (f"{NODE} a:b", "'b' is not a port"),
    (f"{NODE} a:0", "port 0; expected one from 1 to 65535"),
    (f"{NODE} a:65536", "port 65536; expected one from 1 to 65535"),
    (f"{NODE} ::1:29503", "an IPv6 address needs brackets"),
    (f"{NODE} [::1]", "'[::1]': no port"),
    (f"{NODE} a:1 --local-addr=", "--local-addr: expected an address of this node, got ''"),
    (f"{NODE} a:1 --interface eth0/1", "expected the name of a network interface"),
    ("--lr 0", "--lr: '0' is not a positive number"),
    ("--lr nan", "--lr: 'nan' is not a positive number"),
    ("--time-limit soon", "--time-limit: 'soon' is not a duration"),
    ("--time-limit 0", "--time-limit: '0' is not a duration"),
    ("--seed -1", "--seed: '-1' is not an integer of at least 0"),
    ("--optimizer sdg", "Did you mean 'sgd'?"),
    ("--arch mnist_cn", "unknown architecture 'mnist_cn'. Did you mean 'mnist_cnn'?"),
    ("--arch nowhere:Model", "no module 'nowhere' found"),
    ("--data digit", "Did you mean 'digits'?"),
    ("--data mnist --data-dir empty", "train-images-idx3-ubyte"),
    ("--batch-sizes 2000 --gpus 1", "2000 is more than the 1797 samples of digits"),
    ("--name a/b", "--name 'a/b': expected a plain folder name"),
    ("--resume", "--resume needs the --name"),
    ("--resume --name absent", "does not exist"),
    ("--stepss 5", "No such option: --stepss"),
    ("-1", "No such option: -1. See dpbench sweep --help."),
    ("--name --quiet", "--name --quiet: that is an option"),
    (
        "--steps autoo",
        "--steps: 'autoo' is not a positive integer; write a whole number from 1 on, or",
    ),
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
    assert "--batch-sizes is empty" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_a_value_that_is_listed_twice_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "--batch-sizes", "8,8", "--dry-run"]
    assert run(arguments) == 0
    assert "--batch-sizes: 8 is listed twice; it counts once" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_cpu_is_another_name_for_shm_and_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "--sync-backend", "cpu", "--implementations", "ddp"]
    assert run([*arguments, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "--sync-backend cpu means shm: ranks reduce through the host's memory" in err
    assert "shm" in out


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
    assert "the last line is cut off" in capsys.readouterr().err


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
