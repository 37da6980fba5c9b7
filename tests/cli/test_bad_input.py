"""Every wrong value is refused before anything starts: one line, exit status 2, no folder.

tests/options has the values that each kind of option refuses; tests/run/training has a table like
this one for dpbench train.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.records.environment import usable_cores

TOO_MANY = str(usable_cores() + 1)
NODE = "--nnodes 2 --node-rank 0 --rdzv-endpoint"
SWEEP = [
    ("--batch-sizes 32,abc", "--batch-sizes: got 'abc'; expected a whole number, or"),
    ("--sync-backend cpuu", "--sync-backend: got 'cpuu'; did you mean 'shm'"),
    ("--batch-size=x", "--batch-size: got 'x'; expected a whole number"),
    ("--json --columns itm", "unknown column 'itm'"),
    ("--backends gloo,foo", "--backends: got 'foo'; did you mean 'gloo'? Expected one of gloo"),
    ("--sync-every 4", "expected --implementations with local-sgd, got dp,ddp,torch-ddp"),
    ("--sync-every 4 --steps 5 --implementations local-sgd", "--steps to be a multiple of 4"),
    ("--backends gloo --implementations dp", "none of the implementations dp has a choice"),
    ("--bucket-cap-mb 1e7", "--bucket-cap-mb: got '1e7'; expected at most 1,000,000"),
    ("--gpus 0", "--gpus: got '0'; expected a number of GPUs, or distinct ids"),
    ("--gpus 0,99", "no device 99"),
    (f"--gpus {TOO_MANY}", "add --oversubscribe"),
    ("--gpus 1 --group-sizes 2", "--group-sizes: 2 is above --gpus 1; expected at most 1"),
    (f"--group-sizes {TOO_MANY}", "add --oversubscribe"),
    ("--scaling strong --batch-sizes 1 --group-sizes 2", "smaller than the group of 2"),
    ("--steps 0", "--steps: got '0'; expected 1 or more"),
    ("--repetitions 0", "--repetitions: got '0'; expected 1 or more"),
    ("--threads 999", "more than the"),
    ("--dtypes f16", "it needs a GPU"),
    ("--data-workers 2", "workers need --prefetch of 1 or more"),
    ("--nnodes 2", "--nnodes 2 needs --node-rank: 0 on the node that records"),
    ("--node-rank 0", "--node-rank is for several nodes; add --nnodes"),
    ("--nnodes 2 --node-rank 2", "--node-rank 2: expected from 0 to 1, as --nnodes is 2"),
    ("--nnodes 2 --node-rank 0", "needs --rdzv-endpoint: where node 0 can be reached"),
    (f"{NODE} a", "--rdzv-endpoint 'a': expected HOST:PORT with a port from 1 to 65535"),
    ("--arch resnet50", "unknown architecture 'resnet50'. Did you mean 'resnet:depth=50'?"),
    ("--arch mnist_cn", "unknown architecture 'mnist_cn'. Did you mean 'mnist_cnn'?"),
    ("--arch nowhere:Model", "no module 'nowhere' found"),
    ("--data digit", "--data: got 'digit'; did you mean 'digits'?"),
    ("--data mnist --data-dir empty", "train-images-idx3-ubyte"),
    ("--batch-sizes 2000 --gpus 1", "2000 for 1 replica is more than the 1797 samples of digits"),
    ("--name a/b", "--name 'a/b': expected a plain folder name"),
    ("--resume", "--resume needs the --name"),
    ("--resume --name absent", "does not exist"),
    ("--columns sed", "'sed'. Did you mean 'seed'?"),
    ("--stepss 5", "No such option: --stepss"),
    ("quick", "unexpected argument quick; did you mean --preset quick? See dpbench sweep --help."),
    ("train.py", "no file train.py here ("),
    ("--arch train.py", "a function in the file; dpbench explain train.py measures a training"),
    ("mlp --gpus 2", "unexpected argument mlp; did you mean --arch mlp?"),
    ("--preset quik", "Did you mean 'quick'?"),
    ("--results-dir file --gpus 1 --batch-sizes 4", "Not a directory"),
]
OTHERS = [
    ("swep", "Did you mean 'sweep'? See dpbench --help."),
    ("report .", "has no sweep.json"),
    ("list --results-dir x", "--results-dir"),
    ("list chats", "unknown kind 'chats'. Did you mean 'charts'?"),
    ("doctor mlp", "unexpected argument mlp. See dpbench doctor --help."),
    ("doctor --gpus 0", "--gpus: got '0'; expected 1 or more"),
    ("init model", "FILE: got 'model', expected a name that ends in .py"),
    ("init a:b.py", "FILE: got 'a:b.py', expected a name without quotes"),
    ("init none/model.py", "FILE: got none/model.py, but there is no folder none; create it first"),
    ("init file.py", "file.py already exists; name another FILE"),
    ("init --example mine.py", "--example takes no FILE; got 'mine.py'"),
    ("check", "got nothing to compare; expected one of --against-ref REV"),
    (
        "check --against-ref",
        "Option '--against-ref' requires an argument. See dpbench check --help.",
    ),
    ("check --against torch", "--against: got 'torch'; did you mean 'torch-dp'?"),
    ("comm --backends nccl --gpus 2 --oversubscribe", "--backends nccl: "),
    ("compare a", "compare a: name the candidate, too"),
    ("project missing.csv", "missing.csv"),
]
CASES = [*((f"sweep {words}", message) for words, message in SWEEP), *OTHERS]
SMALL = ["--batch-sizes", "4", "--steps", "3", "--quiet", "--no-charts"]


@pytest.fixture
def here(here: Path) -> Path:
    (here / "empty").mkdir()
    for name in ("file", "file.py"):
        (here / name).write_text("mine\n")
    return here


@pytest.mark.parametrize(("words", "message"), CASES, ids=[case for case, _ in CASES])
def test_a_wrong_value_is_one_line_and_exit_status_2(
    here: Path, capfd: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert run(words.split(" ")) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]
    assert all(line.startswith("dpbench: ") for line in err.splitlines())
    assert {path.name for path in here.iterdir()} == {"empty", "file", "file.py"}
    assert (here / "file.py").read_text() == "mine\n"


def test_an_empty_list_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--batch-sizes", ""]) == 2
    assert "--batch-sizes: got ''; expected a comma-separated list" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_cpu_is_another_name_for_shm(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "--sync-backend", "cpu", "--implementations", "ddp"]
    assert run([*arguments, "--dry-run"]) == 0
    assert " shm " in capsys.readouterr().out


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder."""
    from tests.cli.synthetic import dpbench

    place = tmp_path_factory.mktemp("swept")
    assert dpbench("sweep", "--name", "one", *SMALL, "--results-dir", place) == 0
    return place / "one"


@pytest.fixture
def one(swept: Path, here: Path) -> Path:
    """A copy of it in the working directory."""
    return Path(shutil.copytree(swept, here / "results/one"))


@pytest.mark.parametrize("command", ["report {} --no-charts", "explain {}", "compare {} {}-2"])
def test_a_last_line_that_is_cut_off_is_a_warning_of_every_command(
    one: Path, swept: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    shutil.copytree(swept, "results/one-2")
    path = one / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    run(command.replace("{}", "results/one").split())
    warning = "results/one/trials.jsonl: the last line is cut off"
    assert warning in " ".join("".join(capsys.readouterr()).split())
