"""What a terminal shows: one verdict, one warning, the table, one line of where to read on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.records.trial import HostLoad
from dpbench.report.answers.report import headline_sentences, report_answer
from dpbench.report.commands import command_to_decide, next_command
from dpbench.report.page import page_text
from dpbench.specs.command_line import CommandLine
from tests.analysis.builders import runs, steps_of, trial
from tests.analysis.collective_records import sample_collectives
from tests.report.sample import analysis, stored_collectives


def test_rows_that_tie_within_the_noise_have_no_winner() -> None:
    ours, theirs = runs(trial(), (190, 209, 228)), runs(trial("torch-ddp"), (170, 187, 204))
    alone = runs(trial("ddp", batch_size=64), (100, 101, 102))
    line, other = headline_sentences(analysis([*ours, *theirs, *alone]))
    tie = "No clear winner at batch 32: ddp/gloo ×1 and torch-ddp/gloo ×1 tie at 186–208 images/s."
    assert line == tie
    assert other == "Fastest at batch 64: ddp/gloo ×1 at 101 ± 3 images/s."


def test_a_tie_has_the_command_that_decides_it_unless_the_rows_are_known_to_be_alike() -> None:
    ours, theirs = runs(trial(), (190, 209, 228)), runs(trial("torch-ddp"), (187, 170, 204))
    nearer = runs(trial(backend="shm"), (189, 174, 204))
    tied = analysis([*ours, *theirs, *nearer])
    (fastest,) = tied.fastest
    text, duration = command_to_decide(tied, fastest).split("   # ")
    words = text.split()
    assert words[2:6] == ["--implementations", "ddp,torch-ddp", "--backends", "gloo"]
    assert words[-2] == "--repetitions"
    assert 3 < int(words[-1]) < 20
    assert duration.startswith("about ")
    # Several backends were asked for: which of them is faster comes first.
    assert tied.sweep is not None
    command = tied.sweep.command.again(backends=["gloo", "shm"])
    of_backends = replace(tied, sweep=replace(tied.sweep, command=command))
    words = command_to_decide(of_backends, fastest).split()
    assert words[2:6] == ["--backends", "gloo,shm", "--implementations", "ddp"]
    # A rival that is known to be alike, and one that takes 50 repetitions.
    for speeds in ((189, 208, 227), (186, 216, 214)):
        alike = analysis([*ours, *runs(trial("torch-ddp"), speeds)])
        (fastest,) = alike.fastest
        assert fastest.rivals
        assert command_to_decide(alike, fastest) == ""


def test_the_deciding_command_measures_independent_copies_if_the_sweep_did() -> None:
    tie = [("ddp", (190, 209, 228)), ("torch-ddp", (187, 170, 204))]
    records = [one for name, speeds in tie for one in runs(trial(name, group_size=2), speeds)]
    copies = runs(trial("independent", "none", 2), (240, 241, 242))
    for measured, copied in ((records, ""), ([*records, *copies], ",independent")):
        found = analysis(measured)
        words = command_to_decide(found, found.fastest[0]).split()
        assert words[words.index("--implementations") + 1] == f"ddp,torch-ddp{copied}"


def test_the_page_advises_on_the_fastest_row_that_has_several_replicas() -> None:
    rows = (("single", "none", 1, 0.01), ("ddp", "gloo", 2, 0.03), ("ddp", "shm", 2, 0.02))
    records = [
        steps_of(
            name,
            [seconds] * size,
            [0.01] * size if size > 1 else None,
            backend=backend,
            repetition=n,
        )
        for n in range(3)
        for name, backend, size, seconds in rows
    ]
    advice = "<li>50.000 ± 0 % of the step is exposed communication on shm (ddp/shm ×2,"
    assert advice in page_text(analysis(records))


def test_the_headline_has_the_lead_that_repetitions_in_turn_show() -> None:
    passes = (100.0, 120.0, 100.0, 120.0, 100.0, 120.0)
    records = [*runs(trial(), passes), *runs(trial("torch-ddp"), [0.95 * x for x in passes])]
    (line,) = headline_sentences(analysis(records))
    assert line.startswith("Fastest at batch 32: ddp/gloo ×1 at 1")
    assert line.endswith(
        "; repetition by repetition, ddp/gloo ×1 is 1.053 ± 0 × as fast as torch-ddp/gloo ×1."
    )


def test_a_steady_row_whose_rivals_are_too_noisy_is_no_tie() -> None:
    steady, wild = runs(trial(), (1000, 999, 998)), runs(trial("torch-ddp"), (1000, 510, 20))
    (line,) = headline_sentences(analysis([*steady, *wild]))
    assert line.startswith("No clear winner at batch 32: ddp/gloo ×1 at 999 ± 2 ")
    assert line.endswith("; too noisy to compare: torch-ddp/gloo ×1.")


def test_on_a_busy_machine_the_winner_is_uncertain_and_nothing_is_advised() -> None:
    busy = HostLoad(cores=2, during=2.0, stolen=0.0)
    steps = ("ddp", [0.03, 0.03], [0.01, 0.01])
    records = [
        one
        for n in range(3)
        for one in (steps_of("single", [0.01], repetition=n), steps_of(*steps, repetition=n))
    ]
    sweep = analysis([replace(one, host_load=busy) for one in records])
    text = " ".join(report_answer(sweep, verbose=True).text.split())
    winner, _, more = text.partition("images/s, ")
    assert winner.startswith("Perhaps the fastest at batch 32: single ×1 at ")
    assert more.startswith(
        "but other programs slowed down 2 of 2 rows. Warning: other "
        "processes used 100 % of 2 cores during 6 of 6 trials: free the machine and measure again "
    )
    assert text.count("other processes used") == 1
    assert "before acting on this: all rows" in text
    assert text.endswith("Next: dpbench sweep # once the machine is free")
    typed = CommandLine(name="sweep", options={"preset": "quick"})
    assert next_command(sweep, typed) == "dpbench sweep --preset quick   # once the machine is free"
    both = "dpbench explain demo   # or: dpbench explain your_script.py"
    assert next_command(analysis(records), typed) == both
    assert "What to try" not in page_text(sweep)
    assert "What to try" in page_text(analysis(records))


def test_where_page_faults_cost_much_the_same_is_measured_without_them() -> None:
    (measured,) = runs(trial(group_size=2), (100,))
    steps = replace(measured.ranks[0].timed, page_faults=10**6)
    ranks = tuple(replace(rank, windows={"timed": steps}) for rank in measured.ranks)
    following = next_command(analysis([replace(measured, ranks=ranks)]))
    assert following.startswith("export MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1")
    assert " && dpbench sweep   # " in following


def test_two_warnings_are_shown_and_the_others_are_notes() -> None:
    sweep = analysis(runs(trial(group_size=2), (100, 101)))
    warned = replace(sweep, folder_warnings=("the machine was busy", "one", "another one"))
    page = Path("r/report/index.html")
    short = report_answer(warned, page=page).text
    assert short.count("Warning: ") == 2
    assert "another one" not in short
    said = " ".join(short.split())
    assert "Report: r/report/index.html Next: dpbench explain demo (" in said
    assert said.endswith("(1 more warning, 1 note: --verbose)")
    assert "· another one" in report_answer(warned, verbose=True).text
    alone = analysis(runs(trial("single", "none"), (100, 101)))
    # Explain has nothing to explain.
    assert "Next:" not in report_answer(alone).text


def test_collectives_that_did_not_complete_have_their_reason() -> None:
    text = " ".join(report_answer(stored_collectives(sample_collectives())).text.split())
    assert "all_reduce on nccl ×2: failed (1 repetition): rank 1 died" in text
    assert "float32, 1 thread per rank, cpu" in text


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3, 0.9])
def test_the_largest_error_of_collectives_stays_beside_the_time_in_eighty_columns(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = report_answer(stored_collectives(sample_collectives(spread=spread))).text
    lines = text.splitlines()
    assert ("too noisy" in text) == (spread > 0.02)
    assert {"Time", "Error", "busbw"} <= {*lines[0].split()}
    assert max(map(len, lines)) <= 80
