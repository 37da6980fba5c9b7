"""`dpbench.sweep`: the same options as the command, in somebody else's program."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import dpbench
from dpbench import folders
from dpbench.api.calls import measuring
from dpbench.errors import UsageError
from dpbench.options.model import options_of
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.rendezvous.placement import Placement
from tests.launch.synthetic import SyntheticRunner

SMALL: dict[str, Any] = {
    "implementations": ["ddp", "torch-ddp"],
    "batch_sizes": [8],
    "group_sizes": [1, 2],
    "repetitions": 2,
    "oversubscribe": True,
}
needs_no_ranks = pytest.mark.usefixtures("synthetic")


def test_help_has_all_options_of_the_command_with_their_types() -> None:
    described = inspect.getdoc(dpbench.sweep) or ""
    options = options_of(SweepOptions)
    of_python = {name for name, one in options.items() if not one.printed}
    for name in of_python - {"arch"}:
        assert f"\n    {name} (" in described
    assert "\n    batch_sizes (int | Sequence[int]): Samples per replica.\n" in described
    for part in (">>> results = dpbench.sweep(", "\nReturns:\n", "\nRaises:\n"):
        assert part in described


@needs_no_ranks
def test_a_sweep_stores_its_records_and_prints_its_progress(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = dpbench.sweep(**SMALL, name="mine")
    out, err = capfd.readouterr()
    assert (out, "[10/10]" in err) == ("", True)
    assert results.folder == Path("results/mine")
    assert "dpbench: --data digits, the default of mnist_cnn" in err
    stored = folders.load_sweep(here / "results/mine")
    assert stored.command.options["implementations"] == ["ddp", "torch-ddp"]
    assert len(results.trials) == len(stored.records) == 10
    assert not (here / "results/mine/report").exists()
    assert dpbench.load("results/mine").rows.equals(results.rows)
    quiet = dpbench.sweep(**SMALL, name="quiet", progress=False, report=True, charts=False)
    assert capfd.readouterr() == ("", "")
    assert "data-kind" not in (quiet.folder / "report/index.html").read_text()


@needs_no_ranks
@pytest.mark.usefixtures("here")
def test_the_first_process_of_a_launcher_measures_and_the_others_have_no_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in Placement.first_of(2).variables.items():
        monkeypatch.setenv(name, value)
    before = {**os.environ}
    results = dpbench.sweep(**SMALL)
    assert results.spec.devices == ("cpu", "cpu")
    assert {**os.environ, **before} == {**os.environ}, "the caller's variables are back"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert dpbench.sweep(**SMALL) is None


@needs_no_ranks
def test_an_interrupt_keeps_what_was_measured_and_says_how_to_go_on(here: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    complete, calls = SyntheticRunner.run, []

    def interrupted(self: SyntheticRunner, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return complete(self, *arguments)

    with (
        patch.object(SyntheticRunner, "run", interrupted),
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        dpbench.sweep(**SMALL, name="cut")
    message = str(caught.value)
    assert message.startswith("interrupted: 2 of 10 trials are stored in results/cut; to finish: ")
    assert message.endswith(" --name cut --resume")
    assert len(dpbench.load("results/cut").trials) == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@needs_no_ranks
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

    with measuring("dpbench.sweep"):
        thread = threading.Thread(target=measure)
        thread.start()
        thread.join()
    assert "another call of this process is measuring" in refused[0]
    assert 'puts its call under `if __name__ == "__main__":`' in refused[0]


def test_ranks_do_not_run_the_script_that_asked_for_them_and_change_nothing_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multiprocessing would import what __main__ says it is: here a script without a guard."""
    variables = {**os.environ}
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
        oversubscribe=True,
    )
    assert {*results.trials["status"]} == {Status.COMPLETED.value}
    assert not again.exists()
    assert main.__file__ == str(script)
    assert vars(main)["__spec__"] is None
    assert {**os.environ} == variables


@needs_no_ranks
def test_architectures_are_a_name_or_a_list_of_them(here: Path) -> None:
    one = dpbench.sweep("mlp:width=8,layers=2", **SMALL, name="one")
    assert one.spec.axes["architecture"] == ("mlp:width=8,layers=2",)
    several = dpbench.sweep(**SMALL, arch=["mlp:width=8,layers=2", "gpt"], name="several")
    assert several.spec.axes["architecture"] == ("mlp:width=8,layers=2", "gpt")
    assert "gpt: " in several.summary
    for wrong in (None, "gtp"):
        with pytest.raises(UsageError, match=f"got work={wrong!r}; expected 'gpt' or 'mlp:width"):
            several.plot("speedup", work=wrong)
    with pytest.raises(UsageError, match="got work='gpt'; leave it out"):
        one.plot("speedup", work="gpt")
    assert several.plot("speedup", work="gpt").get_suptitle() == "Speedup by group size: gpt"
