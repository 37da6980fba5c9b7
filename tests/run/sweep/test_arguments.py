"""Options of a sweep in files: below what is typed, above the defaults, and kept with the sweep."""

from __future__ import annotations

import json
import shlex
import string
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.cli.app import app
from dpbench.errors import UsageError
from dpbench.run import presets
from dpbench.run.option_layers import LEFT_OUT
from dpbench.run.sweep.arguments import SweepArguments
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.grid import plan_trials
from dpbench.run.sweep.options import SweepOptions
from dpbench.specs.settings import Flag, settings_of
from dpbench.store import SweepStore, load_header
from tests.builders import sweep_spec
from tests.cli.synthetic import dpbench

pytestmark = pytest.mark.usefixtures("synthetic")

COMMAND = typer.main.get_command(app).commands["sweep"]  # type: ignore[attr-defined]
SMALL = ("--quiet", "--no-charts")


def asked(*words: object, launched: bool = False) -> SweepArguments:
    with COMMAND.make_context("dpbench sweep", [*map(str, words)]) as context:
        return SweepArguments.of(context, context.params, launched=launched)


def read(*words: object) -> dict[str, Any]:
    one = asked(*words)
    parsed(one)
    return one.options()


def parsed(one: SweepArguments) -> ParsedOptions:
    return one.parsed(one.options())[0]


def written(folder: Path, text: str, name: str = "sweep.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_is_typed_goes_before_the_file_that_before_the_preset_and_that_before_defaults(
    tmp_path: Path,
) -> None:
    preset = read("--preset", "quick")
    assert preset["warmup"] != read()["warmup"]
    config = written(tmp_path, "steps = 7\nrepetitions = 3\nlr = 0.5")
    options = read("--preset", "quick", "-f", config, "--lr", "0.2")
    assert (options["lr"], options["steps"], options["repetitions"]) == ("0.2", "7", "3")
    assert (options["warmup"], options["seed"]) == (preset["warmup"], "0")


@pytest.mark.parametrize("name", ["sweep.toml", "sweep.yaml"])
def test_keys_are_the_options_and_values_are_scalars_or_lists(tmp_path: Path, name: str) -> None:
    lines = {
        "batch_sizes": "[8, 16]",
        "group-size": "1",
        "dtypes": '["f32", "bf16"]',
        "gpus": "[0]",
        "channels-last": "[true, false]",
        "time-limit": '"90s"',
        "oversubscribe": "true",
        "charts": "false",
        "data-dir": '"here"',
    }
    mark = " = " if name.endswith("toml") else ": "
    text = "\n".join(f"{key}{mark}{value}" for key, value in lines.items())
    options = read("--config", written(tmp_path, text, name))
    expected = {
        "batch_sizes": "8,16",
        "group_sizes": "1",
        "dtypes": "f32,bf16",
        "gpus": "0,",
        "channels_last": "yes,no",
        "time_limit": "90s",
        "oversubscribe": True,
        "charts": False,
        "data_dir": Path("here"),
    }
    assert {key: options[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch-siz = 5", "unknown key in {}: 'batch-siz'. Did you mean 'batch-sizes'?"),
        ("batch-size = 5\nbatch-sizes = 6", "{}: batch-sizes is there twice"),
        ("name = 'mine'", "{}: name belongs to one call and to no file; type --name"),
        ("batch-sizes = []", "{}: --batch-sizes is empty"),
        ("batch-sizes = [[8]]", "{}: batch-sizes: expected a number, text or a list"),
        ("batch-sizes = [8, 'x']", "{}: --batch-sizes: 'x' is not a positive integer"),
        ("steps = 1.5", "{}: --steps: '1.5'"),
        ("lr = 2026-01-01", "{}: lr: expected a number, text or a list of them, got date"),
        ("oversubscribe = 1", "{}: oversubscribe: expected true or false, got '1'"),
        ("implementations = 'dpp'", "{}: unknown value for --implementations: 'dpp'. Did you mean"),
        ("sync-every = 4", "{}: --sync-every 4: it is an option of local-sgd"),
        ("[exclude]\ndtype = 'f32'", "{}: exclude: expected a number, text or a list"),
        ("[[exclude]]", "{}: exclude: expected a table of conditions"),
        (
            "[[exclude]]\ndtypes = 'f32'",
            "{}: unknown field in --exclude: 'dtypes'. Did you mean 'dt",
        ),
        ("[[exclude]]\nbatch-size = []", "{}: exclude: 'batch-size': expected a value or a list"),
        ("[[exclude]]\nbatch-size = [8, 'x']", "{}: --exclude batch-size: 'x' is not a positive"),
        ("[[exclude]]\ndtype = 'f32 x'", "{}: exclude: 'dtype': 'f32 x' is not a value"),
        ("exclude = 'dtype'", "{}: --exclude: 'dtype' is not a condition"),
        ("exclude = 'dtype=f32 dtype=bf16'", "has dtype twice"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    config = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        read("--config", config)
    assert message.replace("{}", str(config)) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_error_names_the_layer_that_it_comes_from(tmp_path: Path) -> None:
    config = written(tmp_path, "seed = 1")
    with pytest.raises(UsageError, match=r"^--lr: 'x'"):
        read("--config", config, "--lr", "x")
    with pytest.raises(UsageError, match=r"^--bucket-cap-mb 5: it is an option of"):
        read("--preset", "quick", "--implementations", "dp", "--bucket-cap-mb", "5")
    with pytest.raises(UsageError, match=r"^--preset paper: --sync-every 4 with --steps auto"):
        read("--preset", "paper", "--implementations", "local-sgd", "--sync-every", "4")


def test_another_name_of_an_option_takes_the_place_of_what_the_file_says(tmp_path: Path) -> None:
    config = written(tmp_path, "backends = ['gloo', 'shm']")
    options = read("--config", config, "--sync-backend", "cpu")
    assert (options["backends"], options["sync_backend"]) == (None, "cpu")


def test_tables_of_conditions_are_what_the_option_says(tmp_path: Path) -> None:
    text = "[[exclude]]\nimplementation = 'dp'\ndtype = ['fp32', 'bf16']\n[[exclude]]\n"
    text += "channels-last = true\nbucket_cap_mb = 25.0"
    found = parsed(asked("--config", written(tmp_path, text)))
    typed = "dtype=f32 implementation=dp,implementation=dp dtype=bf16,channels_last=yes "
    same = parsed(asked("--exclude", f"{typed}bucket-cap-mb=25"))
    assert found.exclude == same.exclude
    assert found.exclude[1] == ("implementation=dp", "dtype=bf16")


IN_FILES = {n: one for n, one in settings_of(SweepOptions).items() if one.scope != "call"}
TEXTS = [name for name, one in IN_FILES.items() if not isinstance(one.kind, Flag)]
values = st.one_of(
    st.text(string.ascii_letters + string.digits + " -_:,.#'\"{}[]é", min_size=1, max_size=12),
    st.sampled_from(["off", "0x10", "1:30", "010", "1e3", "1.50", "- a", "? b", "yes", "8,16"]),
).filter(lambda text: text not in LEFT_OUT)


@settings(max_examples=30)
@given(layer=st.dictionaries(st.sampled_from(TEXTS), values, max_size=5))
def test_what_show_config_prints_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, layer: dict[str, str]
) -> None:
    typed = asked(*(f"{IN_FILES[name].option}={value}" for name, value in layer.items()))
    path = tmp_path_factory.getbasetemp() / "shown.yaml"
    path.write_text(typed.as_config(), encoding="utf-8")
    back = asked("--config", path).options()
    assert {name: back[name] for name in IN_FILES} == {
        name: typed.options()[name] for name in IN_FILES
    }


FILE = """
arch = "mlp"
implementations = ["ddp", "dp"]
batch-sizes = [8, 16]
repetitions = 1
[[exclude]]
implementation = "dp"
group-size = 2
"""


@pytest.mark.usefixtures("signals")
def test_the_folder_keeps_the_options_so_that_the_file_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = written(tmp_path, FILE)
    words = ("sweep", "--config", config, "--name", "a", "--gpus", 2, "--oversubscribe", *SMALL)
    assert dpbench(*words) == 0
    spec, command = load_header(Path("results/a"))
    assert not any(word in ("--config", str(config)) for word in command)
    assert {(t.implementation, t.group_size) for t in plan_trials(spec)} == {
        *(("single", 1), ("dp", 1), ("ddp", 1), ("ddp", 2)),
    }
    assert "--exclude implementation=dp group_size=2: leaves out 2 of 10 rows" in (
        capsys.readouterr().err
    )
    written(tmp_path, FILE.replace("16", "32"))
    assert dpbench(*words, "--resume") == 0
    started = "the options are those with which the sweep in results/a was started"
    assert f"--config {config} is not read: {started}" in capsys.readouterr().err
    assert dpbench(*words, "--preset", "full", "--resume") == 0
    said = capsys.readouterr().err
    assert f"--config {config} and --preset full are not read: {started}" in said
    assert "resuming: 8 of 8 trials are stored" in said
    assert dpbench(*words, "--preset", "fool", "--resume") == 2
    assert "unknown value for --preset: 'fool'" in capsys.readouterr().err
    config.unlink()
    assert dpbench(*words, "--resume") == 2
    assert f"--config {config}: there is no such file" in capsys.readouterr().err
    assert dpbench(*command, "--resume") == 0
    assert dpbench(*command, "--resume", "--lr", 3) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "--lr: 0.01 -> 3" in error
    assert shlex.join(command) in error


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--arch", "evil:Net"),
        ("--arch", "a/b,evil.py:make"),
        ("--step", "evil:step"),
        ("--data", "evil:dataset"),
    ],
)
def test_a_sweep_from_elsewhere_imports_nothing_that_was_not_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ("sweep", "--preset", "quick", "--name", "a", *SMALL)
    assert dpbench(*words) == 0
    header = json.loads(Path("results/a/sweep.json").read_text())
    header["command"] += [option, named]  # the rest of the file says mlp
    Path("results/a/sweep.json").write_text(json.dumps(header))
    Path("evil.py").write_text("raise SystemExit('it was imported')")
    capsys.readouterr()
    assert dpbench(*words, "--resume") == 2
    expected = f"if you trust it, give {option} {shlex.quote(named)} as well"
    assert expected in capsys.readouterr().err


@pytest.mark.usefixtures("signals")
def test_a_command_that_no_sweep_stored_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    SweepStore.create(Path("results/a"), sweep_spec(), ["sweep", "--help"]).close()
    assert dpbench("sweep", "--preset", "quick", "--name", "a", "--resume", *SMALL) == 2
    assert "No such option: --help" in capsys.readouterr().err


def dry(capsys: pytest.CaptureFixture[str], rules: str) -> tuple[int, list[str]]:
    words = ("--dry-run", "--arch", "mlp", "--gpus", 2, "--oversubscribe", "--exclude", rules)
    status = dpbench("sweep", *words)
    return status, capsys.readouterr().err.splitlines()


def test_what_rules_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = dry(capsys, "group_size=7,group_size=1")
    assert status == 0
    assert "dpbench: --exclude group_size=7: no row is like that" in said
    assert "leaves out 6 of 15 rows; single stays as the baseline of others" in said[-1]
    _, said = dry(capsys, "implementation=single batch_size=64")
    assert "without single at group size 1 rows of batch size 64 have no absolute" in said[-1]
    status, said = dry(capsys, "implementation=dp,implementation=ddp,implementation=single")
    assert status == 2
    assert "the rules leave out all of 15 rows; expected at least one to stay" in said[-1]


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_a_sweep_that_says_what_it_is_for_and_what_it_asks(name: str) -> None:
    one = asked("--preset", name, "--warmup", "1")
    found, _, notes = one.parsed(one.options())
    assert found.options.warmup == (1,)
    assert notes == []
    assert one.notes[0].startswith(f"--preset {name}: --")
    assert "--warmup" not in one.notes[0]
    assert presets.purpose(presets.path_of(name)).endswith(".")


def test_a_preset_does_not_ask_for_what_another_name_of_its_option_takes_the_place_of() -> None:
    (note,) = asked("--preset", "full", "--sync-backend", "gloo").notes
    assert "--repetitions" in note
    assert "--backends" not in note


def test_all_files_of_presets_are_named_and_others_are_not() -> None:
    of_train = {f"train-{name}" for name in presets.training_names()}
    found = {path.stem for path in presets.FOLDER.glob("*.toml")}
    assert found == {*presets.names()} | of_train
    with pytest.raises(UsageError, match=r"--preset: 'quik'. Did you mean 'quick'\?"):
        asked("--preset", "quik")


@pytest.mark.parametrize("name", ["sweep.toml", "sweep.yaml"])
def test_a_file_lists_architectures_with_options(tmp_path: Path, name: str) -> None:
    mark = " = " if name.endswith("toml") else ": "
    config = written(tmp_path, f'arch{mark}["mlp:width=4,layers=2", "gpt:layers=1"]', name)
    expected = ("mlp:width=4,layers=2", "gpt:layers=1")
    assert parsed(asked("--config", config)).options.arch == expected


def test_a_table_of_conditions_names_an_architecture_with_its_options(tmp_path: Path) -> None:
    table = '[[exclude]]\narchitecture = "mlp:width=4,layers=2"\ngroup-size = [1, 2]'
    (first, second) = parsed(asked("-f", written(tmp_path, table))).exclude
    assert first == ("group_size=1", "architecture=mlp:width=4,layers=2")
    assert second == ("group_size=2", "architecture=mlp:width=4,layers=2")
