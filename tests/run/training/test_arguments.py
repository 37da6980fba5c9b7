"""Options in a file: read as they would be typed, below the command line and above the defaults."""

from __future__ import annotations

import string
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.codec import encode
from dpbench.errors import StoreError, UsageError
from dpbench.run import option_layers
from dpbench.run.option_layers import Layer, as_config, read_layer
from dpbench.run.training.arguments import KEPT, TrainArguments, stored_layer, stored_options
from dpbench.run.training.command import TrainCommand
from dpbench.run.training.options import TrainOptions
from dpbench.specs.settings import Flag, Switch, Texts, defaults_as_typed, settings_of
from dpbench.specs.training import TrainingRun
from dpbench.store.record_log import write_versioned
from dpbench.training.run_folder import RUN_FILE, RunFolder
from tests.cli.training import train
from tests.records.test_environment import HERE
from tests.training.jobs import training_spec

DEFAULTS = defaults_as_typed(TrainCommand)
OPTIONS = settings_of(TrainOptions)
FLAGS = [name for name, one in OPTIONS.items() if isinstance(one.kind, Flag)]
TEXTS = [name for name in OPTIONS if name not in FLAGS]


def asked(config: Path | None = None, **given: Any) -> TrainArguments:
    typed = DEFAULTS | given | {"config": config}
    return TrainArguments(typed=typed, given=given.keys(), command=["train"])


def read(config: Path, **given: Any) -> Texts:
    """All options, as they would be typed."""
    return asked(config, **given).read().texts


def config_layer(path: Path) -> Layer:
    return read_layer(path, TrainCommand)


def written(folder: Path, text: str, name: str = "options.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_is_typed_goes_before_the_file_and_that_before_the_default(tmp_path: Path) -> None:
    config = written(tmp_path, "dtype: bf16\nepochs: 3\nbatch-size: 8\n")
    options = read(config, epochs="5")
    assert (options["dtype"], options["epochs"]) == ("bf16", "5")
    assert (options["batch_size"], options["lr"]) == ("8", "1.0")


@pytest.mark.parametrize("name", ["options.yaml", "options.yml", "options.toml"])
def test_names_and_values_are_those_of_the_command_line(tmp_path: Path, name: str) -> None:
    lines = {
        "batch_size": "8",
        "lr-scaling": '"sqrt"',
        "lr": "1e-3",
        "gpus": "[0, 1]",
        "oversubscribe": "true",
        "timeout": '"90s"',
    }
    mark = " = " if name.endswith("toml") else ": "
    text = "\n".join(f"{key}{mark}{value}" for key, value in lines.items())
    layer = config_layer(written(tmp_path, text, name))
    assert layer.pop("lr") in ("1e-3", "0.001")
    assert layer == {
        "batch_size": "8",
        "lr_scaling": "sqrt",
        "gpus": "0,1",
        "oversubscribe": True,
        "timeout": "90s",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "channels-last: true\ncheckpoint-activations: no\nmax-steps: 5\n"),
        ("a.toml", "channels_last = true\ncheckpoint_activations = 'no'\nmax_steps = 5\n"),
    ],
)
def test_a_switch_is_yes_or_no_in_the_words_of_each_language(
    tmp_path: Path, name: str, text: str
) -> None:
    layer = config_layer(written(tmp_path, text, name))
    assert layer == {"channels_last": "yes", "checkpoint_activations": "no", "max_steps": "5"}


def test_yaml_makes_nothing_else_of_a_text(tmp_path: Path) -> None:
    text = "evaluate: off\nbatch-size: 010\ntimeout: 1:30\nmax-norm:\nshares: null\ngpus: [1]\n"
    layer = config_layer(written(tmp_path, text))
    assert layer == {"evaluate": "off", "batch_size": "010", "timeout": "1:30", "gpus": "1,"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 5", "unknown key in {}: 'epoch'. Did you mean 'epochs'?"),
        ("batchsize: 5", "Did you mean 'batch-size'?"),
        ("name: mine", "{}: name belongs to one call and to no file; type --name"),
        ("epochs: five", "{}: --epochs: 'five' is not a positive integer"),
        ("epochs: -1", "{}: --epochs: '-1' is not a positive integer"),
        ("epochs: [5]", "{}: epochs: expected a number or text, got a list"),
        ("epochs: {a: 5}", "{}: epochs: expected a number or text, got a mapping"),
        ("gpus: [[0]]", "{}: gpus: expected a number, text or a list of them, got a list"),
        ("oversubscribe: 3", "{}: oversubscribe: expected true or false, got '3'"),
        ("epochs: 5\nepochs: 6", "epochs is there twice"),
        ("batch-size: 5\nbatch_size: 6", "{}: batch_size is there twice"),
        ("5: 6\n? [a]\n: 7", "{} is not YAML"),
        ("- epochs", "{}: expected options as 'batch-size: 32', got a list"),
        ("epochs", "{}: expected options as 'batch-size: 32', got 'epochs'"),
        ("epochs: [", "{} is not YAML: "),
        ("a: &a [*a]", "{} is not YAML: found unconstructable recursive node"),
        ("epochs: !!python/object/apply:os.getcwd []", "expected a number or text, got a list"),
        ("backend: gloo\nsync-backend: shm", "{}: got --backend gloo and --sync-backend shm"),
        ("arch: mlpp", "{}: unknown architecture 'mlpp'. Did you mean 'mlp'?"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    config = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        read(config)
    assert message.replace("{}", str(config)) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_of_any_number_of_keys_is_refused_at_once(tmp_path: Path) -> None:
    config = tmp_path / "options.yaml"
    config.write_text("".join(f"k{number}: 1\n" for number in range(95_000)))
    with pytest.raises(UsageError, match="more than 64 KiB; expected a file of options"):
        option_layers.content_of(config)
    config.write_text("".join(f"k{number}: 1\n" for number in range(6_000)))
    assert len(option_layers.content_of(config)) == 6_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs = ", "is not TOML"),
        (b"epochs = 5\nepochs = 6", "is not TOML"),
        (b"\xff\xfe", "expected text in UTF-8"),
        (b"#" * (2 << 20), "more than 64 KiB"),
        (b"epochs = true", "expected a number or text, got 'True'"),
        (b"epochs = " + b"9" * 5000, "TOML|too large"),
    ],
)
def test_a_wrong_toml_file_is_an_error_too(tmp_path: Path, content: bytes, message: str) -> None:
    config = tmp_path / "options.toml"
    config.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read(config)


def test_what_is_typed_wrong_is_no_fault_of_the_file(tmp_path: Path) -> None:
    config = written(tmp_path, "epochs: 5")
    with pytest.raises(UsageError, match=r"^--batch-size: 'x'"):
        read(config, batch_size="x")


def test_an_error_names_the_layer_that_it_comes_from(tmp_path: Path) -> None:
    run_of(tmp_path / "one", **{"sync-every": "4"})
    with pytest.raises(UsageError, match=rf"^{tmp_path / 'one'}: --sync-every 4: it is an option"):
        asked(resume="one", runs_dir=tmp_path).read()
    config = written(tmp_path, "lr-warmup: 5")
    with pytest.raises(UsageError, match=rf"^{config}: --lr-warmup 5: the rate rises"):
        read(config)
    with pytest.raises(UsageError, match=r"^--lr-warmup 6: the rate rises"):
        read(config, lr_warmup="6")


@pytest.mark.parametrize(
    ("text", "typed", "option", "value"),
    [
        ("backend: gloo", {"sync_backend": "shm"}, "backend", None),
        ("no-eval: true", {"evaluate": "rank0"}, "no_eval", False),
        ("evaluate: rank0", {"no_eval": True}, "evaluate", None),
        ("balance: speed", {"shares": "2,1"}, "balance", "equal"),
    ],
)
def test_another_name_of_an_option_takes_the_place_of_what_the_file_says(
    tmp_path: Path, text: str, typed: dict[str, Any], option: str, value: object
) -> None:
    assert read(written(tmp_path, text), **typed)[option] == value


values = st.one_of(
    st.text(string.ascii_letters + string.digits + " -_:,.#'\"{}[]é", max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["off", "null", "~", "true", "0x10", "1:30", "010", "1e3", "", "- a", "? b"]),
)
LAYERS = st.tuples(
    st.dictionaries(st.sampled_from(TEXTS), values, max_size=4),
    st.dictionaries(st.sampled_from(FLAGS), st.booleans(), max_size=1),
).map(lambda both: both[0] | both[1])


@settings(max_examples=30)
@given(layer=LAYERS)
def test_what_show_config_prints_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, layer: dict[str, Any]
) -> None:
    """But for values that YAML has for nothing, which no option has, and its own yes and no."""
    options = {name: DEFAULTS[name] for name in OPTIONS} | layer
    path = tmp_path_factory.getbasetemp() / "shown.yaml"
    path.write_text(as_config(TrainCommand, options), encoding="utf-8")
    said = {"true": "yes", "false": "no"}
    expected = {
        name: said.get(value, value) if isinstance(OPTIONS[name].kind, Switch) else value
        for name in OPTIONS
        if (value := options[name]) is not None and value not in option_layers.LEFT_OUT
    }
    assert config_layer(path) == expected


@settings(max_examples=30)
@given(layer=LAYERS)
def test_what_a_run_folder_keeps_is_read_back(layer: dict[str, Any]) -> None:
    options = {name: DEFAULTS[name] for name in OPTIONS} | layer
    kept = stored_layer(stored_options(options))
    assert kept == {name: v for name in KEPT if (v := options[name]) is not None}


def test_the_options_in_force_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = written(tmp_path, "epochs: 3\ngpus: 0,1\n")
    assert train("-f", config, "--lr", "0.5", "--show-config") == 0
    shown = capsys.readouterr().out
    assert "epochs: 3\n" in shown
    assert "lr: 0.5\n" in shown
    assert "gpus: 0,1\n" in shown
    assert "gamma: null\n" in shown
    assert "max-norm: null\n" in shown
    assert not (tmp_path / "runs").exists()
    assert train("-f", written(tmp_path, shown, "again.yaml"), "--show-config") == 0
    assert capsys.readouterr().out == shown


def run_of(folder: Path, **configuration: str) -> RunFolder:
    arch = configuration.get("arch", "mlp")
    spec = training_spec()
    spec = replace(spec, workload=replace(spec.workload, architecture=arch))
    return RunFolder.create(folder, spec, TrainingRun(), ["train"], HERE, configuration)


def test_a_run_that_is_resumed_has_its_options_below_the_file_and_what_is_typed(
    tmp_path: Path,
) -> None:
    run_of(tmp_path / "one", **{"epochs": "2", "batch-size": "4", "lr": "0.1", "debug": "true"})
    config = written(tmp_path, "batch-size: 8")
    options = read(config, resume="one", runs_dir=tmp_path, lr="0.2")
    assert (options["epochs"], options["batch_size"], options["lr"]) == ("2", "8", "0.2")
    assert options["debug"] is True


def test_a_run_from_elsewhere_imports_nothing_that_was_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('it was imported')")
    run = run_of(tmp_path / "one", arch="evil:Net")
    spec = replace(run.header.spec, workload=training_spec().workload)
    honest = replace(run.header, spec=spec)  # but for its options
    (tmp_path / "one" / RUN_FILE).unlink()
    write_versioned(tmp_path / "one" / RUN_FILE, encode(honest))
    with pytest.raises(UsageError, match="if you trust it, give --arch evil:Net as well"):
        asked(resume="one", runs_dir=tmp_path).read()


def test_a_key_that_no_run_has_is_an_error(tmp_path: Path) -> None:
    run_of(tmp_path / "one", epoch="2")
    with pytest.raises((UsageError, StoreError), match=r"unknown key in run.json: 'epoch'"):
        asked(resume="one", runs_dir=tmp_path).read()


def test_the_preset_torch_ddp_has_the_defaults_of_that_script_below_what_is_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    options = asked(preset="torch-ddp", batch_size="32").read().options
    assert (options.arch, options.data, options.data_dir) == ("mnist_cnn", "mnist", "data")
    assert (options.epochs, options.lr, options.gamma) == (5, 1.0, 0.7)
    assert (options.batch_size, options.optimizer, options.log_interval) == (32, "adadelta", 20)
    assert options.checkpoint == str(tmp_path / "mnist_ddp_checkpoint.pt")
    assert not options.download  # nothing is fetched unless it is asked for
    with pytest.raises(UsageError, match=r"--preset: 'torch-dp'. Did you mean 'torch-ddp'\?"):
        asked(preset="torch-dp").read()


def test_a_run_folder_names_no_file_to_overwrite_and_fetches_nothing() -> None:
    hostile = {"checkpoint": "/home/me/.profile", "download": "true", "max-steps": "3", "lr": "2"}
    assert stored_layer(hostile) == {"lr": "2"}
    texts = asked(checkpoint="/tmp/mine.pt", lr="2").read().texts
    assert "checkpoint" not in stored_options(texts)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"checkpoint": "/nowhere/mine.pt"}, "--checkpoint /nowhere/mine.pt: there is no folder"),
        ({"checkpoint": "/tmp"}, "--checkpoint /tmp is a folder; expected the name of a file"),
        ({"download": True, "data": "digits"}, "--download fetches MNIST, but --data is digits"),
        ({"download": True}, "--download needs --data mnist, and --data-dir .* add --data mnist"),
        ({"download": True, "data": "mnist"}, "the folder to download to; add --data-dir data"),
    ],
)
def test_where_nothing_can_be_kept_or_fetched_it_is_said_before_the_training(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        asked(**given).read()
