"""What compare prints: the table against a golden file, every format, and what stands below."""

from __future__ import annotations

import json
from dataclasses import replace

from dpbench.analysis.comparisons.comparison import compare_sides
from dpbench.analysis.comparisons.matching import Side
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.comparison import answer
from dpbench.report.table import Table
from tests.analysis.builders import record, runs, side, trial

WITHOUT = "no completed repetition of the candidate"
STEADY = (1000.0, 1002.0, 999.0, 1001.0, 998.0)
NOISY = (1000.0, 1200.0, 900.0, 1100.0, 800.0)


def sample() -> tuple[Side, Side]:
    """One configuration of every outcome, and one on each side without a partner."""
    factors = {16: (STEADY, 1.25), 32: (STEADY, 0.9), 64: (STEADY, 1.001), 128: (NOISY, 0.97)}
    before = [runs(trial(batch_size=b), speeds) for b, (speeds, _) in factors.items()]
    after = [
        runs(trial(batch_size=b), [speed * factor for speed in speeds])
        for b, (speeds, factor) in factors.items()
    ]
    return (
        side(
            "results/before",
            *before,
            runs(trial("single", "none"), STEADY),
            runs(trial("ddp", "shm"), STEADY),
            runs(trial("dp", "threads"), STEADY),
        ),
        side(
            "results/after",
            *after,
            runs(trial("single", "none"), STEADY[:1]),
            [record(trial("ddp", "shm"), status=Status.FAILED)],
            runs(trial("torch-ddp"), STEADY),
        ),
    )


def answer_to(**changes: object) -> Answer:
    """The answer on the sample, with changes of what was matched."""
    limits = {"images_per_second": 0.03}
    found = compare_sides(*sample(), limits)
    return answer(replace(found, **{"notes": ["a note"], **changes}), within=0.03)


def test_a_markdown_comparison_is_a_table_of_github_and_nothing_beside_it_is_markup() -> None:
    found = answer_to(notes=["only in <img src=x>: `a` | @b"]).markdown
    assert "\n| Configuration " in found
    assert "\n|:------" in found
    assert "\\<img src=x\\>" in found
    assert "@b" not in found


def test_every_outcome_has_its_words_and_numbers() -> None:
    found = answer_to()
    table = found.paragraphs[1]
    assert isinstance(table, Table)
    rows = {line[0].rpartition(", ")[2]: line[1:] for line in table.lines if "gloo" in line[0]}
    assert rows == {
        "batch 16": ("1,000 ± 2", "1,250 ± 2", "0.8000 ± 0.0018", "<0.001", "5", "faster"),
        "batch 32": ("1,000 ± 2", "900.0 ± 1.8", "1.111 ± 0.003", "<0.001", "5", "slower"),
        "batch 64": (
            *("1,000 ± 2", "1,001 ± 2", "0.999 ± 0.002", "0.694", "5"),
            "the same within 3 %",
        ),
        "batch 128": (
            *("990 ± 218", "960 ± 211", "1.0 (0.8–1.3)", "0.771", "5"),
            "inconclusive (detects 38 %)",
        ),
    }
    (failed,) = (line for line in table.lines if "shm" in line[0])
    assert failed[2:] == (*("–", "–", "–", "5, 0"), f"inconclusive: {WITHOUT}")
    said = " ".join(found.text.split())
    assert "B is faster in 1, slower in 1 and the same within 3 % in 1 of 6 rows; 3 are" in said


def test_json_has_the_rows_and_what_has_no_partner() -> None:
    content = json.loads(answer_to().json)
    assert (content["baseline"], content["candidate"]) == ("results/before", "results/after")
    assert content["only_in_baseline"] == ["dp ×1, batch 32"]
    assert content["only_in_candidate"] == ["torch-ddp/gloo ×1, batch 32"]
    assert content["notes"] == ["a note"]
    outcomes = {row["configuration"]: row["outcome"] for row in content["rows"]}
    assert outcomes["ddp/gloo ×1, batch 16"] == "faster"
    failed = next(r for r in content["rows"] if r["configuration"] == "ddp/shm ×1, batch 32")
    assert failed["candidate"] is None
    assert failed["reason"] == WITHOUT
