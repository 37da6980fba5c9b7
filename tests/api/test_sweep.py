"""`dpbench.sweep`: the same options as the command, in somebody else's program."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_origin
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpbench
from dpbench import store
from dpbench.api import host_program
from dpbench.api.arguments import equivalent_command
from dpbench.api.sweep import sweep as sweep_of_python
from dpbench.cli.app import run
from dpbench.cli.sweep import sweep as sweep_of_the_command
from dpbench.errors import DpbenchError, StoreError, UsageError
from dpbench.launch.machine import Machine
from dpbench.records.trial import Status
from dpbench.run.shared_options import NodeOptions
from dpbench.run.sweep import preparation
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.sweep.preparation import SweepRequest
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs.settings import Auto, settings_of
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.launch.synthetic import SyntheticLauncher

PRINTED = {"columns", "debug", "dry_run", "show_config", "json_rows", "quiet"}
"""What concerns what is printed; `progress` is the opposite of `quiet`."""
LAYERS = {"context", "config"}
"""Options in files; a caller has dictionaries."""
OF_PYTHON = {"progress", "report"}
"""The command always writes a report."""
ONLY_OF_THE_COMMAND = PRINTED | LAYERS | {field.name for field in fields(NodeOptions)}
"""A sweep over several nodes is the same command on each."""
MACHINE = Machine(cores=4, gpus=(), cuda=None, missing_backends=())
SMALL: dict[str, Any] = {
    "implementations": ["ddp", "torch-ddp"],
    "batch_sizes": [8],
    "group_sizes": [1, 2],
    "repetitions": 2,
    "oversubscribe": True,
}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def test_options_and_defaults_are_those_of_the_command() -> None:
    python, typed = parameters(sweep_of_python), parameters(sweep_of_the_command)
    assert {*python} - OF_PYTHON == {*typed} - ONLY_OF_THE_COMMAND
    for name in {*python} - OF_PYTHON:
        one = settings_of(SweepOptions)[name]
        assert one.as_typed(python[name]) == one.as_typed(typed[name]), name


class Stop(Exception):
    """Instead of measuring."""


def asked_by_python(options: dict[str, Any]) -> SweepRequest | str:
    """What the call would measure, or its error."""
    with patch.object(preparation, "find_place", side_effect=Stop) as find_place:
        try:
            dpbench.sweep(**options)
        except Stop:
            return find_place.call_args.args[0]
        except UsageError as error:
            return str(error)
    raise AssertionError("it measured")


def asked_by_the_command(words: list[str]) -> SweepRequest | str:
    with (
        patch.object(preparation, "measure_sweep", side_effect=Stop) as measure,
        patch("dpbench.cli.app.say") as said,
    ):
        try:
            run(words)
        except Stop:
            return measure.call_args.args[0]
    return said.call_args.args[0]


def alike(one: SweepRequest, other: SweepRequest) -> bool:
    """Progress is silent in a Python call, unless it is asked for."""
    loud = replace(one.options, quiet=other.options.quiet)
    return replace(one.parsed, options=loud) == other.parsed


names = st.lists(st.sampled_from(list(IMPLEMENTATIONS)), min_size=1, max_size=3)
counts = st.integers(1, 60) | st.sampled_from([2, 4, -1])
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
numbers = st.floats(1e-6, 100) | st.integers(1, 9) | st.sampled_from([0.5, 1e-30, -1, float("nan")])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "implementations": names.map(lambda some: [*some, "ddp"]) | st.sampled_from(["dp", "dpp"]),
        "backends": st.sampled_from(["gloo", ["gloo", "shm"], ("gloo", "nccl"), "cpu", []]),
        "batch_sizes": sizes | counts | st.sampled_from(["4,8", "4,x", (4, 4), range(4, 6)]),
        "group_sizes": sizes | counts,
        "gpus": st.sampled_from([1, 2, [0, 1], [1], [1, 1], "0,1", "2", -1]),
        "scaling": st.sampled_from(["weak", "strong", "medium", ["weak", "strong"]]),
        "arch": st.sampled_from(
            [
                *("mlp", "mnist_cnn", "tests.launch.faulty:TakesLong", "mlpp"),
                *("mlp:width=4,layers=2,gpt", ["mlp:width=4,layers=2", "gpt"], ["gpt", "gpt"]),
            ]
        ),
        "warmup": counts | sizes,
        "steps": counts | sizes | st.sampled_from(["auto", "12", 50.0, True, (4, 8), (4, "auto")]),
        "threads": st.sampled_from([1, (1, 2), "1,2", [1], 0]),
        "repetitions": counts,
        "precision": st.sampled_from(["1%", "2 %", 0.01]),
        "lr": numbers,
        "bucket_cap_mb": numbers,
        "target_loss": numbers,
        "seed": counts,
        "time_limit": st.sampled_from([30, 2.5, "5m", "x"]),
        "data_dir": st.sampled_from(["data", Path("data")]),
        "name": st.sampled_from(["mine", "my name"]),
        "results_dir": st.sampled_from(["elsewhere", Path("a b")]),
        "oversubscribe": st.booleans(),
        "resume": st.booleans(),
        "retry": st.sampled_from(["failed", ["failed", "timed-out"]]),
        "stop_after_failure": st.booleans(),
    },
)


@settings(max_examples=60)
@given(OPTIONS)
def test_a_call_and_its_command_ask_for_the_same_or_fail_with_the_same_error(
    options: dict[str, Any],
) -> None:
    given = {**parameters(sweep_of_python), **options}
    words = equivalent_command(given, sweep_of_python, SweepOptions)
    python, typed = asked_by_python(options), asked_by_the_command(words)
    if isinstance(python, str) or isinstance(typed, str):
        assert python == typed
        return
    assert alike(python, typed)
    assert list(python.command) == words
    specs = []
    for request in (python, typed):
        try:
            specs.append(build_sweep_spec(request.parsed, MACHINE))
        except UsageError as error:
            specs.append(str(error))
    assert specs[0] == specs[1]


OF_EACH_OPTION = {
    "arch": "mlp",
    "input_shape": None,
    "implementations": "ddp",
    "backends": "gloo",
    "sync_backend": "shm",
    "batch_sizes": "8",
    "group_sizes": "2",
    "step": None,
    "data": "digits",
    "data_dir": "here",
    "scaling": "strong",
    "optimizer": "adamw",
    "lr": "0.5",
    "seed": "1",
    "dtypes": "bf16",
    "compile": "default",
    "channels_last": "yes",
    "checkpoint_activations": "yes",
    "accumulate": "2",
    "sync_every": "5",
    "bucket_cap_mb": "4",
    "comm_hook": "bf16",
    "overlap": "off",
    "prefetch": "2",
    "data_workers": "1",
    "allocator": "keep",
    "warmup": "3",
    "steps": "20",
    "threads": "1",
    "exclude": "batch_size=9",
    "repetitions": "3",
    "precision": "5%",
    "budget": "90",
    "lr_scaling": "linear",
    "target_loss": "0.5",
    "phases": "2",
    "trace": "2",
    "gradient_steps": "3",
    "time_limit": "90",
    "gpus": "2",
    "preset": "quick",
    "name": "mine",
    "retry": "failed",
    "results_dir": "elsewhere",
}
"""A text that each option takes, and a number where its argument is documented as one; None for
those whose text names a file."""
BESIDE: dict[str, dict[str, Any]] = {
    "budget": {"precision": "5%"},
    "data_workers": {"prefetch": 2},
    "retry": {"resume": True, "name": "mine"},
    "resume": {"name": "mine"},
    "sync_every": {"implementations": "local-sgd"},
}
"""Other arguments that an argument needs."""


def documented_values(name: str) -> list[Any]:
    """A value of each type that an argument is documented to take."""
    text = OF_EACH_OPTION.get(name)

    def of(kind: Any) -> list[Any]:
        if get_origin(kind) is Sequence:
            (item,) = get_args(kind)
            several = [value for one in alternatives(item) for value in of(one)]
            return [several, tuple(several)]
        if kind is bool:
            return [True, False]
        if kind is type(None):
            return [None]
        if get_origin(kind) is PathLike:
            return [Path(str(text))]
        return [] if text is None else [kind(text)]

    annotation = inspect.signature(dpbench.sweep).parameters[name].annotation
    return [value for kind in alternatives(annotation) for value in of(kind)]


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


@pytest.mark.parametrize("name", sorted({*parameters(sweep_of_python)} - OF_PYTHON))
def test_an_argument_takes_a_value_of_each_type_that_is_documented(name: str) -> None:
    for value in documented_values(name):
        options = {"arch": "mlp", "implementations": "ddp", **BESIDE.get(name, {}), name: value}
        python = asked_by_python(options)
        assert not isinstance(python, str), f"{value!r}: {python}"
        typed = asked_by_the_command([*python.command])
        assert not isinstance(typed, str), f"{value!r}: {typed}"
        assert alike(python, typed)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("batch_sizes", 32, "32"),
        ("batch_sizes", [32, 64], "32,64"),
        ("batch_sizes", range(2, 5), "2,3,4"),
        ("group_sizes", [2], "2"),
        ("gpus", 1, "1"),  # a count
        ("gpus", [1], "1,"),  # the number of one
        ("gpus", (0, 1), "0,1"),
        ("lr", 1e-05, "1e-05"),
        ("results_dir", Path("a b"), "a b"),
        ("backends", None, None),
        ("bucket_cap_mb", [None, 4.0], "auto,4.0"),
        ("prefetch", (None,), "resident"),
    ],
)
def test_a_value_is_typed_as_the_command_takes_it(name: str, value: Any, text: str | None) -> None:
    assert settings_of(SweepOptions)[name].as_typed(value) == text


@pytest.mark.usefixtures("synthetic")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_sizes": [32, "x"]}, "--batch-sizes: 'x' is not a positive integer"),
        ({"batch_sizes": []}, "--batch-sizes is empty"),
        ({"batch_sizes": {32}}, "batch_sizes: expected text, a number or a list, got set"),
        ({"implementations": b"dp"}, "expected text, a number or a list, got bytes"),
        ({"batch_sizes": [[32, 64]]}, "batch_sizes: expected one list, got [32, 64] in a list"),
        ({"implementations": ["dp,ddp"]}, "a name or a number in each item, got 'dp,ddp'"),
        ({"batch_sizes": None}, "batch_sizes: expected a list, got None"),
        ({"warmup": None}, "warmup: expected a list, got None"),
        ({"phases": None}, "phases: expected a value such as 5, got None"),
        ({"steps": (20, "auto")}, "--steps 20,auto: windows of auto grow"),
        ({"results_dir": ""}, "results_dir: expected the name of a folder, got ''"),
        ({"steps": 2.5}, "--steps: '2.5' is not a positive integer"),
        ({"precision": 0.01}, "--precision: '0.01' is not a percentage"),
        ({"resume": "no"}, "resume: expected True or False, got 'no'"),
        ({"oversubscribe": 1}, "oversubscribe: expected True or False, got 1"),
        ({"arch": dict}, "arch: expected a name, or 'package.module:factory', got type"),
        ({"arch": "__main__:Net"}, "put it into a module"),
        ({"resume": True}, "--resume needs the --name"),
    ],
)
def test_what_cannot_be_is_a_usage_error(here: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        dpbench.sweep(**{**SMALL, **options})
    assert words in str(caught.value)
    assert not any(here.iterdir())


@pytest.mark.usefixtures("synthetic")
def test_a_sweep_stores_its_records_and_prints_nothing(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = dpbench.sweep(**SMALL, name="quiet")
    assert capfd.readouterr() == ("", "")
    assert results.folder == Path("results/quiet")
    assert results.notes[0] == "--data digits, the default of mnist_cnn"
    stored = store.load(here / "results/quiet")
    given = {**parameters(sweep_of_python), **SMALL, "name": "quiet"}
    assert stored.command == tuple(equivalent_command(given, sweep_of_python, SweepOptions))
    assert len(results.trials) == len(stored.records) == 10
    assert not (here / "results/quiet/report").exists()
    assert dpbench.load("results/quiet").configurations.equals(results.configurations)


@pytest.mark.usefixtures("synthetic")
def test_progress_is_what_the_command_prints(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = dpbench.sweep(**SMALL, progress=True)
    assert "--data digits, the default of mnist_cnn" in results.notes
    out, err = capfd.readouterr()
    assert out == ""
    assert "dpbench: --data digits, the default of mnist_cnn\n" in err
    assert "[10/10]" in err


@pytest.mark.usefixtures("synthetic")
def test_a_folder_is_not_written_twice(here: Path) -> None:
    dpbench.sweep(**SMALL, name="mine")
    with pytest.raises(StoreError, match="results/mine exists already"):
        dpbench.sweep(**SMALL, name="mine")
    with pytest.raises(UsageError, match="holds another sweep"):
        dpbench.sweep(**{**SMALL, "batch_sizes": 16}, name="mine", resume=True)
    assert len(dpbench.sweep(**SMALL, name="mine", resume=True).trials) == 10


@pytest.mark.usefixtures("synthetic")
def test_an_interrupt_keeps_what_was_measured_and_says_how_to_go_on(here: Path) -> None:
    """The third trial is interrupted; --resume measures the other eight of ten."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    complete, calls = SyntheticLauncher.run, []

    def interrupted(self: SyntheticLauncher, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return complete(self, *arguments)

    with (
        patch.object(SyntheticLauncher, "run", interrupted),
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        dpbench.sweep(**SMALL, name="cut")
    message = str(caught.value)
    assert message.startswith("interrupted: 2 of 10 trials are stored in results/cut; to finish: ")
    assert len(dpbench.load("results/cut").trials) == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    results = dpbench.sweep(**SMALL, name="cut", resume=True)
    assert len(results.trials) == 10
    assert "resuming: 2 of 10 trials are stored" in results.notes


@pytest.mark.usefixtures("synthetic")
def test_a_thread_may_measure_but_two_at_once_may_not(here: Path) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(dpbench.sweep(**SMALL, name="thread")))
    thread.start()
    thread.join()
    assert len(found[0].trials) == 10
    refused: list[str] = []

    def measure() -> None:
        try:
            dpbench.sweep(**SMALL)
        except UsageError as error:
            refused.append(str(error))

    with host_program.alone():
        thread = threading.Thread(target=measure)
        thread.start()
        thread.join()
    assert "another thread of this process is measuring" in refused[0]


@pytest.mark.usefixtures("synthetic")
def test_a_script_that_is_imported_for_its_architecture_is_told_of_its_guard(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "no_guard.py").write_text("import dpbench\ndpbench.sweep(arch='no_guard:Net')\n")
    monkeypatch.syspath_prepend(here)
    with pytest.raises(UsageError, match=r'put the call under `if __name__ == "__main__":`'):
        dpbench.sweep(**{**SMALL, "arch": "no_guard:Net"})


@pytest.mark.usefixtures("synthetic")
def test_arrays_and_generators_are_lists_and_names_of_one_second_differ(here: Path) -> None:
    folders = []
    with patch("dpbench.run.results.datetime") as clock:
        clock.now.return_value = datetime(2026, 1, 2, tzinfo=UTC)
        for sizes in (np.array([4, 8]), (size for size in (4, 8))):
            results = dpbench.sweep(**{**SMALL, "batch_sizes": sizes})
            assert results.spec is not None
            assert results.spec.batch_sizes == (4, 8)
            folders.append(results.folder.name)
    assert folders == ["20260102-000000-mnist_cnn", "20260102-000000-mnist_cnn-2"]


@pytest.mark.usefixtures("synthetic")
def test_a_daemonic_process_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = SimpleNamespace(current_process=lambda: SimpleNamespace(daemon=True))
    monkeypatch.setattr(host_program, "multiprocessing", daemon)
    with pytest.raises(UsageError, match="daemonic process"):
        dpbench.sweep(**SMALL)


def test_variables_that_ranks_would_not_see_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_program, "_variables_of_ranks", [])
    with host_program.alone():
        pass
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    with (
        pytest.raises(UsageError, match="NCCL_ALGO changed since the first sweep"),
        host_program.alone(),
    ):
        pass


def test_ranks_do_not_run_the_script_again_that_asked_for_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multiprocessing would import what __main__ says it is: here a script without a guard."""
    script, again = here / "script.py", here / "again"
    script.write_text(f"open({str(again)!r}, 'w').close()\nraise SystemExit('not again')\n")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", str(script), raising=False)
    monkeypatch.setattr(main, "__spec__", None)
    results = dpbench.sweep(
        implementations="ddp",
        arch="mlp",
        batch_sizes=4,
        group_sizes=2,
        steps=3,
        warmup=1,
        repetitions=1,
        phases=0,
        gradient_steps=0,
        oversubscribe=True,
    )
    assert {*results.trials["status"]} == {Status.COMPLETED.value}
    assert not again.exists()
    assert main.__file__ == str(script)
    assert vars(main)["__spec__"] is None


def test_errors_have_one_base(here: Path) -> None:
    with pytest.raises(DpbenchError):
        dpbench.load(here / "nowhere")


@pytest.mark.usefixtures("synthetic")
def test_arguments_have_every_name_that_the_command_line_knows(tmp_path: Path) -> None:
    results = dpbench.sweep(
        arch="linear",
        optimizers="adamw",
        implementation="ddp",
        batch_size=8,
        repetitions=1,
        gpus=2,
        results_dir=tmp_path,
    )
    trials = [record.trial for record in store.load(results.folder).records]
    assert {trial.batch_size for trial in trials} == {8}
    assert {trial.workload.optimizer for trial in trials} == {"adamw"}
    assert "ddp" in {trial.implementation for trial in trials}


def test_two_names_of_the_same_argument_are_an_error() -> None:
    names = {"batch_size": 8, "batch_sizes": [8]}
    for first, second in (("batch_size", "batch_sizes"), ("batch_sizes", "batch_size")):
        message = f"got '{second}' beside another name of the same argument, '{first}'"
        with pytest.raises(TypeError, match=message):
            dpbench.sweep(**{name: names[name] for name in (first, second)})


def test_an_unknown_argument_is_told_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(TypeError, match="'optimiser'; did you mean optimizer"):
        dpbench.sweep(optimiser="sgd")


@pytest.mark.parametrize("name", ["config", "dry_run", "json", "quiet"])
def test_an_option_that_only_the_command_has_is_no_argument_that_may_be_meant(name: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'; it is an option of the command only$"):
        dpbench.sweep(**{name: True})
    with pytest.raises(TypeError) as near:
        dpbench.sweep(**{f"{name}x": True})
    assert f"did you mean {name}?" not in str(near.value)


def test_what_is_public_can_be_completed() -> None:
    assert set(dpbench.__all__) <= set(dir(dpbench))


@pytest.mark.usefixtures("synthetic")
def test_a_preset_gives_what_is_not_given_otherwise(here: Path) -> None:
    results = dpbench.sweep(preset="quick", batch_size=16, oversubscribe=True)
    assert results.spec is not None
    assert results.spec.workload.architecture == "mlp"
    assert results.spec.implementations == ("ddp", "torch-ddp")
    assert results.spec.batch_sizes == (16,)
    _, typed = store.load_header(results.folder)
    assert "--preset" not in typed
    assert typed[typed.index("--steps") + 1] == "40"


@pytest.mark.usefixtures("synthetic")
def test_a_backend_of_the_call_takes_the_place_of_those_of_a_preset(here: Path) -> None:
    options = {**SMALL, "preset": "full", "sync_backend": "shm"}
    results = dpbench.sweep(**{**options, "stop_after_failure": False})
    assert results.spec is not None
    assert {*results.spec.backends} == {"shm"}


def test_an_unknown_preset_is_told_with_those_that_there_are(here: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'quick'"):
        dpbench.sweep(preset="quik")


@pytest.mark.usefixtures("synthetic")
@pytest.mark.parametrize("charts", [False, True])
def test_a_report_is_written_where_it_is_asked_for(here: Path, charts: bool) -> None:
    results = dpbench.sweep(**SMALL, name="told", report=True, charts=charts)
    assert (results.folder / "report/index.html").is_file()
    drawn = [*(results.folder / "report").glob("charts/*.svg")]
    assert bool(drawn) is charts


@pytest.mark.parametrize("function", [sweep_of_python, dpbench.train])
def test_every_argument_has_a_type_and_a_meaning(function: Callable[..., Any]) -> None:
    described = inspect.getdoc(function) or ""
    for name, one in inspect.signature(function).parameters.items():
        assert one.annotation is not inspect.Parameter.empty
        assert f"\n    {name}: " in described
        assert isinstance(one.default, str | bool | int | float | tuple | Path | None | Auto)


def test_types_say_what_is_accepted() -> None:
    types = {n: one.annotation for n, one in inspect.signature(sweep_of_python).parameters.items()}
    assert types["batch_sizes"] == Sequence[int | str] | int | str
    assert types["gpus"] == int | Sequence[int] | str
    assert types["results_dir"] == PathLike[str] | str
    assert types["resume"] is bool


@pytest.mark.usefixtures("synthetic")
def test_architectures_are_a_name_or_a_list_of_them(here: Path) -> None:
    one = dpbench.sweep(**SMALL, arch="mlp:width=8,layers=2", name="one")
    assert one.spec.workload.architecture == "mlp:width=8,layers=2"
    assert [*one.headlines] == [""]
    assert one.headline == one.headlines[""]
    several = dpbench.sweep(**SMALL, arch=["mlp:width=8,layers=2", "gpt"], name="several")
    assert [one.architecture for one in several.spec.workloads] == ["mlp:width=8,layers=2", "gpt"]
    assert {*several.headlines} == {"mlp:width=8,layers=2", "gpt"}
    for row in several.rows:
        assert row.speedup is not None
        assert row.absolute_speedup is not None
    assert several.summary.count(" at 2 replicas") == 2
    with pytest.raises(UsageError, match="rows are of several works"):
        _ = several.headline


@pytest.mark.usefixtures("synthetic")
def test_a_chart_of_several_architectures_is_asked_for_by_name(here: Path) -> None:
    several = dpbench.sweep(**SMALL, arch=["mlp", "gpt"], name="several")
    with pytest.raises(UsageError, match="a chart is of one work, and there are gpt; mlp"):
        several.plot("speedup")
    with pytest.raises(DpbenchError, match="unknown work 'gtp'"):
        several.plot("speedup", work="gtp")
    assert several.plot("speedup", work="gpt").get_suptitle() == "Speedup by group size: gpt"
