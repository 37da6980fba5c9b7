"""The options of `dpbench train`: what is right, what is refused in one line before anything
starts, and what a step then holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpbench.cli.app import run
from dpbench.launch.machine import inspect_machine
from dpbench.records.environment import usable_cores
from dpbench.report.progress.training import batch_line
from dpbench.run.training.arguments import check_values
from dpbench.run.training.options import TrainOptions
from dpbench.run.training.preparation import build_training_spec
from dpbench.specs import WorkloadSpec
from dpbench.specs.settings import defaults_as_typed, from_texts
from dpbench.specs.training import TrainingRun
from tests.cli.training import train
from tests.training.jobs import training_spec

TOO_MANY = usable_cores() + 1

CASES = [
    ("--epochs 0", "--epochs: '0' is not a positive integer"),
    ("--epochs x", "--epochs: 'x' is not a positive integer"),
    ("--batch-size 1.5", "--batch-size: '1.5' is not a positive integer"),
    ("--batch-size 9999", "= 9,999 samples a micro-step, more than the 1,442 training samples"),
    ("--limit-train 0", "--limit-train: '0' is not a positive integer"),
    ("--limit-train 99999", "--limit-train 99999: digits has 1,442 training samples"),
    ("--limit-train 9999999999 --data synthetic", "more samples than memory holds"),
    ("--accumulate 0", "--accumulate: '0' is not a positive integer"),
    ("--grad-accum -1", "--accumulate: '-1' is not a positive integer"),
    ("--accumulate 99 --last-window drop", "to drop the last window would leave none"),
    ("--last-window stop", "Did you mean 'step'?"),
    ("--optimizer adadelt", "Did you mean 'adadelta'?"),
    ("--lr 0", "--lr: '0' is not a positive number"),
    ("--lr nan", "--lr: 'nan' is not a positive number"),
    ("--gamma -1", "--gamma: '-1' is not a positive number"),
    ("--lr-scaling liner", "Did you mean 'linear'?"),
    ("--lr-scaling linear --lr 1e308 --accumulate 4", "--lr-scaling linear: "),
    ("--lr-warmup -1", "--lr-warmup: '-1' is not an integer of at least 0"),
    ("--lr-warmup 5", "with --lr-scaling none they are the same"),
    ("--dtype f31", "unknown value for --dtype: 'f31'. Did you mean 'f32'?"),
    ("--dtype float16", "take bf16"),
    ("--dtype tf32", "dtype tf32: got the devices cpu; expected CUDA devices"),
    ("--compile fast", "unknown value for --compile: 'fast'."),
    ("--channels-last maybe", "unknown value for --channels-last: 'maybe'."),
    ("--checkpoint-activations 1", "unknown value for --checkpoint-activations: '1'."),
    ("--max-steps 0", "--max-steps: '0' is not a positive integer"),
    ("--seq-len 32", "expected --arch gpt:context=32"),
    ("--arch dlrm:sparse=true", "--optimizer adadelta: torch's adadelta takes dense gradients"),
    ("--arch dlrm:sparse=true --optimizer sgd --max-norm 1", "--max-norm 1: torch takes the norm"),
    (
        "--arch dlrm:sparse=true --optimizer sgd --implementation ddp-sharded",
        "ddp-sharded takes dense gradients only",
    ),
    ("--max-norm 0", "--max-norm: '0' is not a positive number"),
    ("--implementation ddpp", "Did you mean 'ddp'?"),
    ("--implementation independent --gpus 2", "its replicas never exchange anything"),
    ("--implementation single --gpus 2", "its replicas never exchange anything"),
    ("--implementation torch-dp", "--implementation torch-dp: torch.nn.DataParallel has no CPU"),
    ("--backend glo", "Did you mean 'gloo'?"),
    ("--sync-backend shmm", "Did you mean 'shm'?"),
    ("--backend gloo --sync-backend cpu", "two names of one option; give one of them"),
    ("--backend gloo --implementation dp", "dp has no choice of backend"),
    (
        "--sync-backend cpu --implementation dp",
        "--sync-backend cpu: dp has no choice of backend; leave --sync-backend out",
    ),
    ("--backend nccl", "--backend nccl: "),
    ("--gpus 0", "--gpus: '0' is not a positive integer"),
    ("--gpus 0,0", "--gpus 0,0: device 0 is listed twice"),
    ("--gpus 0,x", "--gpus: 'x' is not an integer of at least 0"),
    ("--gpus 0,99", "no device 99"),
    (f"--gpus {TOO_MANY}", "add --oversubscribe"),
    ("--threads 999", "more than the"),
    ("--sync-every 4", "an option of local-sgd, but --implementation is ddp"),
    ("--sync-every 4 --check-sync-every 6 --implementation local-sgd", "a multiple of 4"),
    ("--sync-every 4 --checkpoint-every 6 --implementation local-sgd", "a multiple of 4"),
    ("--sync-every 4 --max-steps 6 --implementation local-sgd", "an end after 6 steps: "),
    (
        "--bucket-cap-mb 5 --implementation dp",
        "an option of ddp, ddp-sharded, torch-ddp, torch-ddp-static",
    ),
    ("--bucket-cap-mb 1e7", "--bucket-cap-mb 1e+07: expected at most 1,000,000 MiB"),
    ("--balance fast", "unknown value for --balance: 'fast'. Known: equal, speed."),
    ("--balance speed --shares 2,1", "give one of them"),
    ("--balance speed --implementation dp --gpus 2", "one process"),
    ("--balance speed", "one process"),
    ("--shares 2,x", "--shares: 'x' is not a positive number"),
    ("--shares 2,1,1 --gpus 2", "shares: got 3 for 2 ranks"),
    ("--prefetch -1", "--prefetch: '-1' is not an integer of at least 0"),
    ("--evaluate rank1", "Did you mean 'rank0'?"),
    ("--evaluate rank0 --no-eval", "give one of them"),
    ("--log-interval 0", "--log-interval: '0' is not a positive integer"),
    ("--check-sync-every 0", "--check-sync-every: '0' is not a positive integer"),
    ("--checkpoint-every 0", "--checkpoint-every: '0' is not a positive integer"),
    ("--max-checkpoints 0", "--max-checkpoints: '0' is not a positive integer"),
    ("--timeout soon", "--timeout: 'soon' is not a duration"),
    ("--timeout 0.01", "expected at least 0.1 s"),
    ("--seed -1", "--seed: '-1' is not an integer of at least 0"),
    ("--arch mlpp", "Did you mean 'mlp'?"),
    ("--data digit", "Did you mean 'digits'?"),
    ("--data mnist --data-dir empty", "train-images-idx3-ubyte"),
    ("--name a/b", "--name 'a/b': expected a plain folder name"),
    ("--resume absent", "--resume absent: no run or checkpoint of that name, here or in runs"),
    ("--resume empty", "has no run.json; expected a run folder"),
    ("--config absent.yaml", "--config absent.yaml: No such file"),
    ("--config empty", "expected a name that ends in .yaml, .yml or .toml"),
    ("--epoch 5", "No such option: --epoch"),
]


@pytest.fixture
def here(here: Path) -> Path:
    (here / "empty").mkdir()
    return here


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[case for case, _ in CASES])
def test_a_wrong_value_is_one_line_and_exit_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert run(["train", "--arch", "mlp", *arguments.split(" ")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]
    assert all(line.startswith("dpbench: ") for line in err.splitlines())
    assert not (here / "runs").exists()


def parsed(notes: list[str] | None = None, **typed: Any) -> TrainOptions:
    found: list[str] = []
    options = from_texts(TrainOptions, {**defaults_as_typed(TrainOptions), **typed}, found)
    check_values(options, found)
    if notes is not None:
        notes += found
    return options


def test_defaults_are_those_of_the_mnist_example() -> None:
    notes: list[str] = []
    settings = parsed(notes)
    assert (settings.lr, settings.batch_size) == (1.0, 64)
    assert (settings.optimizer, settings.arch, settings.seed) == ("adadelta", "mnist_cnn", 0)
    assert settings.run == TrainingRun()
    assert notes == []


@pytest.mark.parametrize(
    ("typed", "epochs", "gamma", "note"),
    [
        ({}, 10, 0.85, "--epochs 10, --gamma 0.85, the defaults of digits"),
        ({"epochs": "3"}, 3, 0.85, "--gamma 0.85, the default of digits"),
        ({"epochs": "3", "gamma": "0.5"}, 3, 0.5, None),
        ({"data": "synthetic"}, 5, 0.7, None),
    ],
)
def test_epochs_and_gamma_default_to_what_the_data_need(
    typed: dict[str, str], epochs: int, gamma: float, note: str | None
) -> None:
    spec, notes = build_training_spec(parsed(arch="mlp", **typed), inspect_machine(), ["cpu"], 1)
    assert (spec.epochs, spec.gamma) == (epochs, gamma)
    assert [line for line in notes if "epochs" in line or "gamma" in line] == [note] * bool(note)


@pytest.mark.parametrize(
    ("typed", "dtype"),
    [
        *((name, "f32") for name in ("f32", "fp32", "float32")),
        *((name, "bf16") for name in ("bf16", "bfloat16")),
        *((name, "f16") for name in ("f16", "fp16", "float16")),
    ],
)
def test_a_dtype_has_several_names(typed: str, dtype: str) -> None:
    assert parsed(dtype=typed).dtype == dtype


def test_how_a_step_is_computed_belongs_to_the_workload() -> None:
    workload = parsed(
        compile="max-autotune", channels_last="yes", checkpoint_activations="yes", max_steps="7"
    ).workload("digits")
    assert (workload.compile, workload.channels_last) == ("max-autotune", True)
    assert workload.checkpoint_activations
    assert parsed().workload("digits") == WorkloadSpec(
        architecture="mnist_cnn", dataset="digits", optimizer="adadelta", learning_rate=1.0
    )


def test_cpu_is_another_name_for_shm_and_is_told() -> None:
    notes: list[str] = []
    assert parsed(notes, sync_backend="cpu").process_backend == "shm"
    assert notes == ["--sync-backend cpu means shm: ranks reduce through the host's memory"]


def test_no_evaluation_has_two_spellings() -> None:
    off = TrainingRun(evaluation="off")
    assert parsed(no_eval=True).run == parsed(evaluate="off").run == off


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "replicas", "effective"), [(2, 4, 2, 16), (32, 4, 1, 128)]
)
def test_the_effective_batch_counts_replicas_and_accumulation(
    batch_size: int, accumulation: int, replicas: int, effective: int
) -> None:
    spec = training_spec(
        batch_size=batch_size, accumulation_steps=accumulation, group_size=replicas
    )
    assert spec.effective_batch_size == effective
    assert f"= {effective} samples per step" in batch_line(spec, 3)


@pytest.mark.usefixtures("signals", "here")
def test_the_size_of_a_step_is_told_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--arch", "mlp", "--gpus", 2, "--oversubscribe", "--accumulate", 4)
    assert train(*options, "--dry-run") == 0
    assert capsys.readouterr().out == (
        "batch 64 × 2 replicas × accumulation 4 = 512 samples per step, 3 steps per epoch, "
        "10 epochs\n"
    )
    assert not Path("runs").exists()


@pytest.mark.usefixtures("signals", "here")
@pytest.mark.parametrize(
    ("words", "printed"), [("--json", "err"), ("--json-lines", "err"), ("--quiet", "out")]
)
def test_a_dry_run_prints_the_size_in_every_form(
    words: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--arch", "mlp", "--gpus", 1, "--dry-run", words) == 0
    said = capsys.readouterr()
    assert "batch 64 × 1 replica = 64 samples per step" in getattr(said, printed)
    if words != "--quiet":
        assert json.loads(said.out) == {
            "batch_size": 64,
            "group_size": 1,
            "accumulation_steps": 1,
            "samples_per_step": 64,
            "steps_per_epoch": 23,
            "epochs": 10,
            "max_steps": None,
        }


@pytest.mark.usefixtures("signals", "here")
def test_a_data_folder_that_nothing_reads_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--arch", "mlp", "--gpus", 1, "--data-dir", "absent", "--dry-run") == 0
    assert "--data-dir absent has no effect with --data digits" in capsys.readouterr().err


@pytest.mark.usefixtures("signals", "here")
def test_an_accumulation_over_more_than_an_epoch_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train("--arch", "mlp", "--gpus", 1, "--accumulate", 40, "--dry-run") == 0
    assert (
        "--accumulate 40: one step would take 2,560 samples and there are 1,442, so each epoch is "
        "one smaller step"
    ) in capsys.readouterr().err


@pytest.mark.usefixtures("signals", "here")
def test_a_scaled_learning_rate_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--arch", "mlp", "--gpus", 1, "--lr", "2e-5", "--accumulate", 4, "--dry-run")
    assert train(*options, "--lr-scaling", "sqrt") == 0
    told = capsys.readouterr().err
    assert "the learning rate is 4e-05, for 256 samples a step instead of 64" in told
    assert "for sgd" not in told
    assert train(*options, "--lr-scaling", "linear", "--lr-warmup", 10) == 0
    told = capsys.readouterr().err
    assert "the learning rate is 8e-05" in told
    assert "--lr-scaling linear is a rule for sgd; for adadelta sqrt is usual" in told
