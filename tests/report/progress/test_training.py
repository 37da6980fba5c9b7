"""What is printed of a training, line by line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.records.trial import MemoryPeaks
from dpbench.report.progress import training as words
from dpbench.specs import WorkloadSpec
from dpbench.training.events import Score, StartLine
from dpbench.training.run_folder import TrainingJob
from tests.training import test_events as events
from tests.training.jobs import QUIET, training_spec

SPEC = training_spec(workload=WorkloadSpec(architecture="mlp", dataset="digits"))
JOB = TrainingJob(spec=SPEC, run=QUIET, folder=Path("runs/one"), prepared=None)
STARTED = replace(events.STARTED, item="images")
STEP = replace(events.STEP, loss=0.4213)
EPOCH = replace(
    events.EPOCH,
    evaluation_seconds=0.2,
    score=Score(loss=0.0911, correct=350, total=360),
    checkpoint="step-00000023.pt",
)
FINISHED = replace(events.FINISHED, score=Score(loss=0.1, correct=972, total=1000))
ONE = replace(STARTED, world_size=1)
STEP_LINE = (
    "epoch 1  step 20  [1,280/1,442 (89 %), rank 0: 640/721]  loss 0.4213  lr 1.0e+00  "
    "3,412 images/s"
)
EPOCH_LINE = (
    "epoch 1: train loss 0.5000, test loss 0.0911, accuracy 350/360 (97.2 %), lr 1.0e+00, "
    "4.1 s + 200 ms evaluation, checkpoint step-00000023.pt (best)"
)


def test_a_start_says_what_runs_where() -> None:
    assert words.started_line(STARTED, SPEC) == (
        "mlp on digits, 1,199,882 parameters: ddp/gloo ×2 on cpu, cpu of 2 hosts"
    )


def test_a_step_says_how_far_and_how_well() -> None:
    assert words.step_line(STEP, STARTED) == STEP_LINE
    assert "[64/1,442 (4 %)]" in words.step_line(replace(STEP, processed=64), ONE)
    more = replace(STEP, gradient_norm=1.5, data_wait_share=0.25, skipped_steps=2)
    assert words.step_line(more, ONE).endswith(
        "  gradient norm 1.5  25 % waiting for data  2 steps skipped"
    )


def test_an_epoch_says_what_was_reached() -> None:
    assert words.epoch_line(EPOCH) == EPOCH_LINE
    bare = replace(
        EPOCH,
        score=None,
        evaluation_seconds=None,
        best=False,
        shares=(0.66, 0.34),
    )
    assert words.epoch_line(bare) == (
        "epoch 1: train loss 0.5000, lr 1.0e+00, 4.1 s, checkpoint step-00000023.pt, "
        "shares 0.66:0.34"
    )


def test_speeds_count_the_items_of_a_sample() -> None:
    of_text = replace(STARTED, item="tokens", items_per_sample=64)
    assert words.step_line(STEP, of_text).endswith("218,394 tokens/s")
    ended = words.finished_line(FINISHED, of_text, JOB)
    assert "s, 21,973 tokens/s with" in ended
    assert "= 8 samples of 64 tokens per step" in words.size_line(JOB, 6, "tokens", 64)


def test_memory_is_told_by_rank_and_flagged_where_it_is_uneven() -> None:
    peaks = [
        MemoryPeaks(host_bytes=held << 20, device_bytes=1 << 30, reserved_bytes=2 << 30)
        for held in (100, 160)
    ]
    on_gpus = replace(FINISHED, peaks=tuple(peaks))
    assert list(words.memory_lines(on_gpus, replace(SPEC, devices=("cuda:0", "cuda:1")))) == [
        "rank 0 on cuda:0: at most 100 MiB of host, 1 GiB of device, 2 GiB of "
        "reserved device memory",
        "rank 1 on cuda:1: at most 160 MiB of host, 1 GiB of device, 2 GiB of "
        "reserved device memory",
        "host memory, largest ÷ mean of ranks: 1.23, above 1.2: uneven",
        "device memory, largest ÷ mean of ranks: 1.00",
        "reserved device memory, largest ÷ mean of ranks: 1.00",
    ]
    alone = replace(FINISHED, peaks=(MemoryPeaks(host_bytes=1 << 20),))
    assert list(words.memory_lines(alone, replace(SPEC, implementation="dp"))) == [
        "rank 0 on cpu, cpu: at most 1 MiB of host memory"
    ]


def printed(job: TrainingJob = JOB, start: StartLine = STARTED, **options: bool) -> str:
    stream = io.StringIO()
    progress = words.TrainingProgress(job, stream, **options)
    for event in (start, STEP, EPOCH, FINISHED):
        progress.hear(event)
    return stream.getvalue()


def test_json_lines_are_the_log_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(json_lines=True) == ""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["started", "step", "epoch", "finished"]
    assert lines[1]["samples_per_second"] == 3412.4


def test_lines_are_printed_as_events_come_and_where_it_goes_on_in_any_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    size, end = words.size_line(JOB, 12, "images", 1), words.finished_line(FINISHED, STARTED, JOB)
    lines = [size, words.started_line(STARTED, SPEC), STEP_LINE, EPOCH_LINE, end]
    assert printed().splitlines() == lines
    again = replace(JOB, resume="auto")
    assert printed(again, quiet=True).splitlines() == [end]
    printed(again, replace(STARTED, step=1, checkpoint="a.pt"), quiet=True)
    assert capsys.readouterr().err.splitlines() == [
        "dpbench: there is no checkpoint: training starts from the beginning",
        "dpbench: resuming from a.pt, after 1 optimizer step",
    ]
