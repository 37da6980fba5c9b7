"""The options of a sweep: their layers, what they decide, and what is stored of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from dpbench import folders
from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.messages import said_to
from dpbench.options.check import CheckOptions
from dpbench.options.model import Subject
from dpbench.options.reading import preset_file, read_options, short_command
from dpbench.options.sweep import SweepOptions


def read(given: dict[str, Any]) -> SweepOptions:
    return read_options(SweepOptions, given)


def written(folder: Path, text: str, name: str = "sweep.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_what_is_typed_goes_before_the_file_that_before_the_preset_and_that_before_defaults(
    tmp_path: Path,
) -> None:
    config = written(tmp_path, "steps = 7\nrepetitions = 3\nlr = 0.5")
    options = read({"preset": "quick", "config": config, "lr": "0.2"})
    assert (options.lr, options.steps, options.repetitions) == ((0.2,), (7,), 3)
    assert (options.warmup, options.seed) == ((10,), (0,))
    with_preset = written(tmp_path, "preset = 'quick'\nsteps = 7\nname = 'mine'", "two.toml")
    options = read({"config": with_preset})
    assert (options.name, options.steps, options.warmup) == ("mine", (7,), (10,))


def test_duplicates_in_a_list_are_removed_in_order_with_a_line_that_says_so() -> None:
    said: list[str] = []
    with said_to(said.append):
        options = read({"batch_sizes": "64,32,64,32,128", "backends": "gloo,shm"})
    assert options.batch_sizes == (64, 32, 128)
    assert said == ["--batch-sizes: duplicates removed: 64,32,128"]


@pytest.mark.parametrize("name", ["sweep.toml", "sweep.yaml"])
def test_keys_are_the_options_and_values_are_scalars_or_lists(tmp_path: Path, name: str) -> None:
    lines = {
        "batch_sizes": "[8, 16]",
        "group-size": "1",
        "dtype": '["f32", "bf16"]',
        "gpus": "[0]",
        "time-limit": '"90s"',
        "oversubscribe": "true",
        "charts": "false",
        "arch": '["mlp:width=4,layers=2", "gpt"]',
    }
    mark = " = " if name.endswith("toml") else ": "
    text = "\n".join(f"{key}{mark}{value}" for key, value in lines.items())
    options = read({"config": written(tmp_path, text, name)})
    assert (options.batch_sizes, options.group_sizes, options.gpus) == ((8, 16), (1,), (0,))
    assert (options.dtype, options.time_limit) == (("f32", "bf16"), 90.0)
    assert (options.oversubscribe, options.charts) == (True, False)
    assert options.arch == ("mlp:width=4,layers=2", "gpt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch-size = 5\nbatch-sizes = 6", "{}: batch-sizes is given twice, under two names"),
        ("config = 'mine'", "{}: config: a file cannot name another one"),
        ("quiet = true", "{}: quiet is an option of the command line only"),
        ("data = 'null'", "{}: --data: got 'null'; expected one of digits, mnist"),
        ("oversubscribe = 7", "{}: --oversubscribe: got 7; expected a valid boolean"),
        ("m = 1", "key in {}: got 'm'; did you mean 'module'?"),
        ("steps = [", "{} is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    config = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        read({"config": config})
    assert message.replace("{}", config) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_error_names_the_layer_that_it_comes_from(tmp_path: Path) -> None:
    config = written(tmp_path, "seed = 'x'")
    with pytest.raises(UsageError, match=r"^--lr: got 'x'"):
        read({"preset": "quick", "lr": "x"})
    with pytest.raises(UsageError, match=r"^--preset quick: --arch: no effect on a training scr"):
        read({"preset": "quick", "script": "train.py"})
    with pytest.raises(UsageError, match=rf"^{config}: --seed: got 'x'"):
        read({"config": config})


def test_what_a_check_is_about_is_read_from_values_and_not_from_their_texts(tmp_path: Path) -> None:
    config = written(tmp_path, "module: false\narch: mlp\ndata:", "check.yaml")
    options = read_options(CheckOptions, {"config": config, "against_ref": "HEAD"})
    assert (options.subject, options.arch, options.data) == (Subject.MODEL, ("mlp",), None)


FILE = """
arch = "mlp"
implementations = ["ddp", "dp"]
batch-sizes = [8, 16]
repetitions = 1
"""


@pytest.mark.usefixtures("signals", "synthetic")
def test_the_folder_keeps_the_options_so_that_the_file_may_change(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(here, FILE)
    words = ["sweep", "--config", config, "--name", "a", "--gpus", "2", "--oversubscribe"]
    words += ["--quiet", "--no-charts"]
    assert run(words) == 0
    spec = folders.load_sweep(Path("results/a")).spec
    assert {(one.implementation, one.group_size) for one in spec.configurations} == {
        *(("single", 1), ("dp", 2), ("ddp", 2)),
    }
    written(here, FILE.replace("16", "32"))
    assert run([*words, "--resume"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "holds another sweep, with other batch_size; to finish it: " in error
    _, _, finish = error.partition("to finish it: dpbench ")
    assert "--batch-sizes 8,16" in finish
    assert run(shlex.split(finish)) == 0
    assert "resuming: 6 of 6 trials are stored" in capsys.readouterr().err


@pytest.mark.parametrize("name", SweepOptions.presets)
def test_every_preset_is_a_sweep_that_says_what_it_is_for_and_what_it_asks(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = read({"preset": name, "warmup": "1", "name": "x"})
    assert options.warmup == (1,)
    assert short_command(options).words == ["--warmup", "1", "--preset", name]
    assert capsys.readouterr().err.startswith(f"dpbench: --preset {name}: --")
    first, *_ = preset_file(SweepOptions, name).read_text().splitlines()
    assert first.startswith("# ")
    assert first.endswith(".")


@pytest.mark.parametrize(("gpus", "backends"), [(0, ("gloo", "shm")), (8, ("nccl",))])
def test_the_first_sweep_uses_the_backends_of_its_devices_and_all_devices(
    gpus: int, backends: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    options = read({"preset": "quick"})
    assert (options.backends, options.group_sizes) == (backends, ("max",))
