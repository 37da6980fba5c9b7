"""A dataclass of options is the signature of its command and of its Python call; what a shell
offers of it, asked as bash asks."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated

import pytest

from dpbench.api.sweep import sweep as sweep_of_python
from dpbench.cli.app import run
from dpbench.cli.options import complete_list
from dpbench.cli.sweep import sweep
from dpbench.errors import UsageError
from dpbench.run.sweep.options import SweepOptions
from dpbench.specs import OPTIMIZERS
from dpbench.specs.settings import (
    AUTO,
    Auto,
    Setting,
    WholeNumber,
    defaults_as_typed,
    from_texts,
    from_values,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Two options."""

    sizes: Annotated[
        tuple[int, ...] | Auto,
        Setting(options=("--sizes",), kind=WholeNumber(least=1), several=True, help="Sizes."),
    ] = AUTO
    count: Annotated[
        int, Setting(options=("--count",), kind=WholeNumber(most=9), help="A count.")
    ] = 3


def test_what_is_typed_becomes_values_and_what_is_left_out_the_default() -> None:
    notes: list[str] = []
    found = from_texts(Options, {"sizes": "32,64,32", "count": None}, notes)
    assert (found.sizes, found.count) == ((32, 64), 3)
    assert notes == ["--sizes: 32 is listed twice; it counts once"]
    assert from_texts(Options, {"sizes": None, "count": "4"}, []) == Options(count=4)


def test_values_of_a_python_call_stay_values() -> None:
    sizes = (32, 64)
    assert from_values(Options, {"sizes": sizes, "count": 4}, []) == Options(sizes=sizes, count=4)
    assert from_values(Options, {"sizes": [32, 64], "count": None}, []) == Options(sizes=sizes)
    assert from_values(Options, {"sizes": 32}, []).sizes == (32,)
    assert from_values(Options, {"sizes": "32,64"}, []).sizes == sizes


@pytest.mark.parametrize("given", [{"count": 10}, {"count": -1}, {"count": 2.5}, {"count": True}])
def test_a_python_value_that_cannot_be_is_refused_as_if_it_were_typed(
    given: dict[str, object],
) -> None:
    with pytest.raises(UsageError, match=r"^--count"):
        from_values(Options, given, [])


def test_the_parameters_of_a_command_are_the_fields_of_its_options() -> None:
    names = [field.name for field in fields(SweepOptions)]
    assert [*inspect.signature(sweep).parameters] == ["context", *names]
    assert {*inspect.signature(sweep_of_python).parameters} <= {*names, "progress", "report"}


def test_an_option_of_a_command_that_is_none_is_no_argument_of_the_call() -> None:
    with pytest.raises(TypeError, match="nope"):
        sweep_of_python(nope=1)


def test_defaults_are_typed_as_a_shell_would_have_them() -> None:
    typed = defaults_as_typed(SweepOptions)
    assert (typed["batch_sizes"], typed["time_limit"], typed["backends"]) == (
        *("32,64,128", "5m"),
        None,
    )


def asked(monkeypatch: pytest.MonkeyPatch, words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The answer to bash, with the cursor at the end of `words`."""
    monkeypatch.setenv("_DPBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dpbench swe", ["sweep"]),
        ("dpbench sweep --lr", ["--lr", "--lrs", "--lr-scaling"]),
        ("dpbench sweep --implementations torch-ddp", ["torch-ddp", "torch-ddp-static"]),
        ("dpbench sweep --implementations dp,sin", ["dp,single"]),
        ("dpbench sweep --backends gloo,", ["gloo,nccl", "gloo,shm"]),
        ("dpbench sweep --sync-backend s", ["shm"]),
        ("dpbench sweep --arch mnist", ["mnist_cnn"]),
        ("dpbench sweep --data dig", ["digits"]),
        ("dpbench sweep --optimizer ad", [name for name in OPTIMIZERS if name.startswith("ad")]),
        ("dpbench sweep --scaling w", ["weak"]),
        ("dpbench sweep --lr-scaling sq", ["sqrt"]),
        ("dpbench plot throughput,eff", ["throughput,efficiency"]),
        ("dpbench sweep --batch-sizes 1", []),
        ("dpbench train --lr-", ["--lr-scaling", "--lr-warmup"]),
        ("dpbench train --dtype b", ["bf16"]),
        ("dpbench train --balance s", ["speed"]),
        ("dpbench train --evaluate o", ["off"]),
        ("dpbench train --last-window d", ["drop"]),
    ],
)
def test_names_are_offered(
    words: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(monkeypatch, words, capsys).split() == offered


def test_a_name_of_a_list_is_not_offered_twice() -> None:
    assert complete_list("a,b,", ["a", "b", "c"]) == ["a,b,c"]
    assert complete_list("", ["a", "b"]) == ["a", "b"]


def test_the_script_for_a_shell_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "zsh")
    with pytest.raises(SystemExit) as ended:
        run(["--show-completion"])
    assert ended.value.code == 0
    assert "compdef _dpbench_completion dpbench" in capsys.readouterr().out
