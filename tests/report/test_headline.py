"""The headline: a winner only where there is one, and what is missing has its reason."""

from __future__ import annotations

from dpbench.records.trial import HostLoad
from dpbench.report.headline import headline_sentences
from dpbench.report.page import build_page
from dpbench.report.screen import screen
from tests.analysis.builders import run, trial
from tests.report.sample import measured, subject


def test_the_fastest_configuration_is_named_with_its_interval_and_scaling() -> None:
    (line,) = headline_sentences(measured().headlines)
    assert line.startswith("Fastest: ddp/gloo ×2, batch 32 at 190.2 ± ")
    assert "images/s, 95.0 ± " in line
    assert line.endswith(" % of linear scaling from its own group size 1.")


def test_rows_that_tie_within_the_noise_have_no_winner() -> None:
    (line,) = headline_sentences(measured(spread=0.1).headlines)
    assert line.startswith("No clear winner: ddp/gloo ×2, batch 32, 2")
    assert line.endswith(" images/s, and torch-ddp/gloo ×2, batch 32 tie.")


def test_a_steady_row_whose_rivals_are_too_noisy_is_no_tie() -> None:
    records = [
        run(trial(name, repetition=number), 1000.0 - number * spread)
        for name, spread in (("ddp", 1.0), ("torch-ddp", 490.0))
        for number in range(3)
    ]
    (line,) = headline_sentences(subject(records).headlines)
    assert line.startswith("No clear winner: ddp/gloo ×1, batch 32 at 999 ± 2 ")
    assert line.endswith(", but torch-ddp/gloo ×1, batch 32 is too noisy to compare with it.")


def test_names_from_records_stay_on_one_line() -> None:
    (line,) = headline_sentences(subject([run(trial(), 100.0, item="<b>\x1b[31m\nrm")]).headlines)
    assert line.isprintable()
    assert "<b> [31m rm/s" in line


def test_a_busy_machine_has_no_winner_which_is_said_once() -> None:
    busy = HostLoad(cores=2, during=2.0, stolen=0.0)
    records = [
        run(trial(group_size=size, repetition=k), 100.0 * size + k, host_load=busy)
        for size in (1, 2)
        for k in range(3)
    ]
    (line,) = headline_sentences(subject(records).headlines)
    assert line.startswith("No fastest configuration: other processes used 100 % of 2 cores dur")
    text = " ".join(screen(subject(records), to_explain="r", verbose=True).split())
    assert text.count("other processes used") == 1
    assert "Next: dpbench explain r" in text
    assert build_page(subject(records)).warnings == (line,)
