"""The headline in words, for a terminal and for the page."""

from __future__ import annotations

from dpbench.analysis.headline import headline
from dpbench.report.headline import findings, sentence
from tests.analysis.builders import record, run, trial
from tests.report.sample import sample_records
from tests.report.subjects import subject


def test_the_sentence_names_the_best_and_its_limit() -> None:
    said = sentence(subject(sample_records()).headline)
    assert said == (
        "dp ×2, batch 128 is fastest: 7,033 ± 25 images/s (n = 3); it reaches 91.9 ± 1.2 % of "
        "linear at 2 replicas (not told apart from torch-ddp/gloo ×2, batch 128); 7.7 ± 0.3 % of "
        "a step is gathering gradients in one process."
    )


def test_without_a_speed_the_sentence_says_why() -> None:
    assert sentence(headline(())) == "No fastest configuration: no trial has ended yet."


def test_a_single_repetition_is_said_to_be_one() -> None:
    records = [run(trial(timed_steps=200), 100.0, losses=())]
    fastest, _, _ = findings(subject(records).headline)
    assert "one repetition, n = 20 batches of its steps" in fastest.about


def test_gradients_that_nobody_checked_are_said() -> None:
    unchecked = [run(trial(repetition=k), 100.0 + k, verification=None) for k in range(3)]
    (fastest, *_) = findings(subject(unchecked).headline)
    assert "its gradients were not compared with one process" in fastest.about


def test_what_records_count_stays_on_one_line() -> None:
    said = sentence(subject([run(trial(), 100.0, item="<script>\x1b[31m\nrm")]).headline)
    assert said.isprintable()
    assert "<script> [31m rm/s" in said


def test_what_is_missing_has_its_reason() -> None:
    failed = subject([record(trial(), reason="rank 0 ended with signal 9")])
    fastest, scaling, limit = findings(failed.headline)
    assert (fastest.value, scaling.value, limit.value) == ("not known", "not known", "none found")
    assert "failed" in fastest.about
