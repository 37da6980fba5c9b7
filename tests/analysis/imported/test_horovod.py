"""Logs of Horovod's synthetic benchmark: known answers, and the line of what is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dpbench.analysis.imported.horovod import read_horovod
from dpbench.analysis.published import PublishedSpeed, summaries
from dpbench.errors import StoreError

ONE = """\
Model: resnet50
Batch size: 32
Number of GPUs: 1
Running warmup...
Running benchmark...
Iter #0: 260.0 img/sec per GPU
Iter #1: 262.0 img/sec per GPU
Iter #2: 264.0 img/sec per GPU
Img/sec per GPU: 262.0 +-3.2
Total img/sec on 1 GPU(s): 262.0 +-3.2
"""
FOUR = """\
Model: resnet50
Batch size: 32
Number of GPUs: 4
Img/sec per GPU: 252.5 +-1.3
Total img/sec on 4 GPU(s): 1010.0 +-5.2
"""


def read(folder: Path, text: str) -> tuple[PublishedSpeed, ...]:
    path = folder / "run.log"
    path.write_text(text)
    return read_horovod(path)


def test_the_spread_behind_plus_minus_is_no_interval_of_the_speed(tmp_path: Path) -> None:
    (speed,) = read(tmp_path, FOUR)
    assert (speed.implementation, speed.backend, speed.item) == ("horovod", None, "images")
    assert (speed.group_size, speed.batch_size) == (4, 32)
    estimate = speed.speed.estimate("images/s")
    assert (estimate.value, estimate.interval, estimate.sample_size) == (1010.0, None, 1)
    assert speed.source is not None
    assert "of resnet50" in speed.source
    assert speed.notes == (
        "+- in the log is the spread of its iterations, no interval of their mean",
    )


def test_iterations_give_an_interval_of_their_mean(tmp_path: Path) -> None:
    """260, 262, 264: a standard error of 2/√3, relative 2/√3/262, t(2) = 4.3027."""
    (speed,) = read(tmp_path, ONE)
    estimate = speed.speed.estimate("images/s")
    reach = 4.302653 * 2 / math.sqrt(3) / 262
    assert estimate.interval == pytest.approx((262 * math.exp(-reach), 262 * math.exp(reach)))
    assert (estimate.sample_size, estimate.basis) == (3, "step batches")
    assert speed.notes == ()


def test_equal_runs_are_repetitions(tmp_path: Path) -> None:
    """The geometric mean of 1000 and 1020.1 is 1010."""
    other = FOUR.replace("252.5", "250.0").replace("1010.0", "1000.0")
    third = FOUR.replace("252.5", "255.0").replace("1010.0", "1020.1")
    (speed,) = read(tmp_path, other + third)
    assert speed.speed.value == pytest.approx(math.sqrt(1000.0 * 1020.1))
    assert (speed.speed.basis, speed.speed.sample_size) == ("repetitions", 2)


def test_runs_of_several_sizes_scale(tmp_path: Path) -> None:
    """1010 ÷ 262 = 3.855, ÷ 4 = 96.4 %."""
    rows = summaries(read(tmp_path, ONE + "some other line\n" + FOUR))
    assert [row.group_size for row in rows] == [1, 4]
    assert rows[1].speedup is not None
    assert rows[1].speedup.value == pytest.approx(1010 / 262)


def test_tags_of_ranks_are_taken_off(tmp_path: Path) -> None:
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in ONE.splitlines())
    assert read(tmp_path, tagged) == read(tmp_path, ONE)


def test_what_the_log_does_not_tell_is_not_known(tmp_path: Path) -> None:
    (speed,) = read(tmp_path, FOUR.splitlines()[-1])
    assert (speed.group_size, speed.batch_size) == (4, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "run.log: no line 'Total img/sec on N GPU.s.: …' in it"),
        (ONE.replace("1 GPU(s)", "2 GPU(s)"), "line 10: expected the total of 1, got 'Total"),
        (FOUR.replace("1010.0", "1009.0"), "line 5: expected 4 times the speed of one, 1010.0"),
        (FOUR.replace("1010.0", "nan"), "line 5: expected a number as the speed, not 'nan'"),
        (FOUR.replace("1010.0", "0.0"), "line 5: expected a number above zero as the speed"),
        (FOUR.replace("32", "x"), "line 2: expected a whole number from 1 on as the batch size"),
        (ONE.replace("Iter #1", "Iter #2"), "line 7: expected iteration #1, got 'Iter #2"),
        (ONE.replace("per GPU: 262.0", "per GPU: 263.0"), "line 9: expected the mean of the 3"),
        (ONE + ONE[: ONE.index("Img")], "line 11: the run that starts here has no line 'Total"),
        (ONE + FOUR.replace("resnet50", "vgg16"), "line 11: expected runs of one model in a file"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_run_that_was_pasted_twice_is_no_repetition(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="line 11: expected another run than the one from line 1"):
        read(tmp_path, ONE * 2)
