"""What is said of other processes that ran beside the trials."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.machine_load import is_disturbed, load_notes
from dpbench.analysis.summary import summarize
from dpbench.records import HostLoad, TrialRecord
from tests.analysis.builders import run, trial


def load(during: float, stolen: float = 0.0) -> HostLoad:
    return HostLoad(cores=2, before=0.0, during=during, stolen=stolen)


def trials(loads: Sequence[HostLoad | None], **changes: object) -> list[TrialRecord]:
    return [
        run(trial(repetition=number, **changes), 1000.0, host_load=one)
        for number, one in enumerate(loads)
    ]


def test_a_busy_machine_is_named_with_what_it_was_busy_with_and_how_often() -> None:
    records = trials([load(2.0)] * 31 + [load(0.1)] * 11)
    assert load_notes(records) == (
        "other processes used 100 % of 2 cores during 31 of 42 trials: figures are not to be "
        "trusted; free the machine and measure again (dpbench doctor --quiet-machine names what "
        "runs)",
    )


def test_a_single_disturbed_trial_of_many_widens_an_interval_and_no_more() -> None:
    (note,) = load_notes(trials([load(1.0), *[load(0.0)] * 19]))
    assert note == (
        "other processes used 50 % of 2 cores during 1 of 20 trials: their intervals may be wide; "
        "more --repetitions help"
    )


def test_what_the_hypervisor_took_is_the_work_of_other_guests() -> None:
    (note,) = load_notes(trials([load(0.0, stolen=0.4)] * 3))
    assert note.startswith("other guests of this virtual machine's host used 20 % of 2 cores")


def test_a_quiet_machine_and_old_results_have_nothing_to_say() -> None:
    assert load_notes(trials([load(0.19), None])) == ()


def test_trials_on_gpus_bear_more_of_it() -> None:
    on_cpu, on_gpu = (trials([load(0.8)], devices=(device,))[0] for device in ("cpu", "cuda:0"))
    assert (is_disturbed(on_cpu), is_disturbed(on_gpu)) == (True, False)


def test_a_row_knows_how_many_of_its_repetitions_were_disturbed() -> None:
    (row,) = summarize(trials([load(1.0), load(0.0), load(1.0)]))
    assert row.disturbed == 2
