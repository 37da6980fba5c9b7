"""Notes on what a model or a step does to its own speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.diagnosis.hints import hints
from dpbench.analysis.diagnosis.user_code import UserCode, code_notes, observed
from dpbench.analysis.rows import summarize
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import rank, record, trial, window
from tests.analysis.diagnosis.scripts import script_sweep

MIB = 2**20


def recorded(
    implementation: str = "ddp",
    growth: tuple[int, ...] = (),
    spec: dict[str, Any] | None = None,
    **changes: Any,
) -> TrialRecord:
    """Two ranks, whose windows have two segments of two steps."""
    timed = replace(
        window([0.1] * 4, 32), segment_steps=(2, 2), memory_growth_bytes=growth or (0, 0)
    )
    both = trial(implementation, group_size=2, **(spec or {}))
    count = both.process_count
    return record(both, [rank(n, timed, **changes) for n in range(count)])


def test_sound_code_has_nothing_to_say() -> None:
    for sound in (recorded(), recorded(threads=1), recorded("dp", threads=2)):
        assert observed([sound]) == UserCode()
        assert code_notes(summarize([sound])) == ()


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        (
            recorded(threads=8),
            "ddp/gloo ×2, batch 32: the model's code sets torch's threads to 8 a process; remove "
            "torch.set_num_threads, so that each replica has 1, or choose their number with "
            "--threads",
        ),
        (
            recorded(reduces_each_micro_step=True, spec={"accumulation_steps": 4}),
            "ddp(4 micro-steps)/gloo ×2, batch 32: the step reduces gradients in each of its 4 "
            "micro-steps; enter model.no_sync() in all but the last",
        ),
        (
            recorded(sync_batch_norms=3),
            "ddp/gloo ×2, batch 32: SyncBatchNorm (3 layers) communicates in every forward pass, "
            "in steps without gradient synchronization too; exposed communication and reduced "
            "bytes leave it out",
        ),
        (
            recorded(growth=(8 * MIB, 10 * MIB)),
            "ddp/gloo ×2, batch 32: memory grows by up to 4 MiB in every step; look for tensors "
            "that the code keeps, such as losses that were not detached",
        ),
    ],
    ids=["threads", "no_sync", "SyncBatchNorm", "leak"],
)
def test_each_action_is_named_with_its_remedy(changed: TrialRecord, note: str) -> None:
    assert hints(summarize([changed]), {}) == (note,)


@pytest.mark.parametrize("name", ["dp", "local-sgd", "independent", "fsdp2"])
def test_implementations_that_reduce_nothing_there_get_no_advice_on_no_sync(name: str) -> None:
    several = {"accumulation_steps": 4}
    assert code_notes(summarize([recorded(name, reduces_each_micro_step=True, spec=several)])) == ()


@pytest.mark.parametrize(
    "growth", [(250 * 1024, 0), (300 * MIB,), (2 * 15 * 1024, 900 * MIB)], ids=str
)
def test_memory_that_is_used_for_the_first_time_is_no_leak(growth: tuple[int, ...]) -> None:
    timed = replace(window([0.1] * 2 * len(growth), 32), segment_steps=(2,) * len(growth))
    timed = replace(timed, memory_growth_bytes=growth)
    assert observed([record(trial(), [rank(0, timed)])]) == UserCode()


def test_symptoms_of_a_script_are_not_repeated_as_notes() -> None:
    assert code_notes(summarize(script_sweep(0, threads=2, sync_batch_norms=3))) == ()


def test_rows_with_the_same_note_share_it() -> None:
    records = [recorded(name, threads=8, growth=(8 * MIB, 9 * MIB)) for name in ("ddp", "fsdp2")]
    threads, growth = code_notes(summarize(records))
    assert threads.startswith("ddp/gloo ×2, batch 32; and 1 more row: the model's code sets")
    assert growth.startswith("ddp/gloo ×2, batch 32; and 1 more row: memory grows by up to 4 MiB")
