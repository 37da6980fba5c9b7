"""The headline in words, for a terminal and for the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.headline import LargestLoss, headline
from dpbench.analysis.summary import summarize
from dpbench.errors import UsageError
from dpbench.records.environment import SYNTHETIC, capture
from dpbench.records.trial import HostLoad
from dpbench.report.headline import findings, sentence, sentences
from tests.analysis.builders import record, run, trial
from tests.report.sample import sample_records, subject

SPEEDS = {"ddp": 100.0, "torch-ddp": 50.0}


def test_the_sentence_names_the_best_and_its_limit() -> None:
    said = sentence(subject(sample_records()).headline)
    assert said == (
        "dp ×2, batch 128 is fastest: 7,033 ± 25 images/s (n = 3); it reaches 91.9 ± 1.2 % of "
        "linear at 2 replicas (n = 3; statistically tied with torch-ddp/gloo ×2, batch 128); "
        "6.8 ± 0.3 % of a step is gathering gradients in one process (n = 3)."
    )


def test_without_a_speed_the_sentence_says_why() -> None:
    assert sentence(headline(())) == "No fastest configuration: no trial was recorded."


def test_the_sentence_of_a_cost_model_says_so() -> None:
    model = {"e0": replace(capture(), launcher=SYNTHETIC)}
    said = sentence(subject(sample_records(), environments=model).headline)
    assert said.startswith("Synthetic (nothing was run): dp ×2, batch 128 ")


def test_a_single_repetition_is_said_to_be_one() -> None:
    records = [run(trial(timed_steps=200), 100.0, losses=())]
    fastest, _, _ = findings(subject(records).headlines)
    assert "one repetition, n = 20 batches of its steps" in fastest.about
    assert "cannot show" not in fastest.about  # as there is no other
    assert "is the only configuration with a speed" in sentence(subject(records).headline)


@pytest.mark.parametrize("steps", [200, 1])
def test_of_a_single_run_nothing_is_told_apart(steps: int) -> None:
    """Twice as fast, and with an interval over its steps that is far from the other's."""
    records = [run(trial(name, timed_steps=steps), v, losses=()) for name, v in SPEEDS.items()]
    found = subject(records).headline
    said = "a single run cannot show whether another is as good"
    assert said in next(findings({"": found})).about
    assert said in sentence(found)
    assert "measured fastest" in sentence(found)


def test_rows_that_tie_within_the_noise_have_no_winner() -> None:
    speeds = {"ddp": (100.0, 102.0, 98.0), "torch-ddp": (99.0, 101.0, 97.0)}
    records = [
        run(trial(name, repetition=number), speed)
        for name, several in speeds.items()
        for number, speed in enumerate(several)
    ]
    found = subject(records).headline
    assert sentence(found).startswith("No clear winner: ddp/gloo ×1, batch 32 reaches 100 ± 5 ")
    assert "statistically tied with torch-ddp/gloo ×1, batch 32" in sentence(found)
    fastest = next(findings({"": found}))
    assert (fastest.title, fastest.value) == ("Fastest", "no clear winner")
    assert fastest.about.startswith("100 ± 5 images/s of ddp/gloo ×1, batch 32; n = 3; ")


def test_what_disturbed_the_trials_comes_first() -> None:
    busy = HostLoad(cores=2, before=1.9, during=2.0, stolen=0.0)
    records = [run(trial(repetition=k), 100.0 + k, host_load=busy) for k in range(3)]
    found = subject(records).headline
    note = "other processes used 100 % of 2 cores during 3 of 3 trials"
    assert sentence(found).startswith(f"Beware: {note}: figures are not to be trusted; ")
    first = next(findings({"": found}))
    assert (first.title, first.value) == ("Busy machine", "not to be trusted")
    assert first.about.startswith(note)


def test_the_sentence_has_what_forbids_to_believe_it() -> None:
    unchecked = [run(trial(repetition=k), 100.0 + k, verification=None) for k in range(3)]
    assert "its gradients were not compared with one process" in sentence(
        subject(unchecked).headline
    )


def test_a_device_with_a_colon_in_its_name_stays_whole() -> None:
    (row,) = summarize([run(trial(), 100.0)])
    share = LogMean.of_runs([0.09, 0.1]).estimate("")
    loss = "waiting for rank 1 (cuda:1), the slowest in all 2 repetitions"
    limit = LargestLoss(share=share, row=row, loss=loss, remedy="compare its clock")
    whole = replace(headline([row]), limit=limit)
    assert f" of a step is {loss} (n = 2)." in sentence(whole)
    assert f"{loss}: compare its clock ({row.label}; n = 2)" in list(findings({"": whole}))[2].about


def test_gradients_that_nobody_checked_are_said() -> None:
    unchecked = [run(trial(repetition=k), 100.0 + k, verification=None) for k in range(3)]
    (fastest, *_) = findings(subject(unchecked).headlines)
    assert "its gradients were not compared with one process" in fastest.about


def test_what_records_count_stays_on_one_line() -> None:
    said = sentence(subject([run(trial(), 100.0, item="<script>\x1b[31m\nrm")]).headline)
    assert said.isprintable()
    assert "<script> [31m rm/s" in said


def test_what_is_missing_has_its_reason() -> None:
    failed = subject([record(trial(), reason="rank 0 ended with signal 9")])
    fastest, scaling, limit = findings(failed.headlines)
    assert (fastest.value, scaling.value, limit.value) == ("not known", "not known", "none found")
    assert "failed" in fastest.about


def test_what_disturbed_the_trials_of_several_works_is_said_before_the_first() -> None:
    busy = headline((), disturbance="other processes used the cores")
    assert [*sentences({"mlp": busy, "gpt": busy})] == [
        "Beware: other processes used the cores.",
        "mlp: No fastest configuration: no trial was recorded.",
        "gpt: No fastest configuration: no trial was recorded.",
    ]


def test_each_work_of_a_sweep_has_a_headline_of_its_own() -> None:
    """The faster kind of scaling is not the fastest row of the other one, and no rival of it."""
    speeds = {("weak", 1): 100.0, ("weak", 2): 180.0, ("strong", 1): 100.0, ("strong", 2): 120.0}
    records = [
        run(
            trial(group_size=n, scaling=scaling, compared=("scaling",), repetition=k),
            speed * (1 + k / 1000),
        )
        for (scaling, n), speed in speeds.items()
        for k in range(3)
    ]
    found = subject(records)
    assert set(found.headlines) == {"weak", "strong"}
    said = {one.partition(": ")[0]: one for one in sentences(found.headlines)}
    assert "ddp/gloo ×2, batch 32 is fastest: 180" in said["weak"]
    assert "it reaches 90" in said["weak"]
    assert "ddp/gloo ×2, batch 32 is fastest: 120" in said["strong"]
    assert "it reaches 60" in said["strong"]
    titles = [finding.title for finding in findings(found.headlines)]
    assert titles.count("Fastest: weak") == titles.count("Fastest: strong") == 1
    with pytest.raises(UsageError, match="rows are of several works"):
        _ = found.headline
