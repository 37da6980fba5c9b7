"""The measurement of a script's rank, from the segments of its steps and what was seen beside."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dpbench.measure.device import gpu_uuid, peak_device_memory, peak_host_memory_bytes
from dpbench.measure.script.clock import Mode, ScriptSegment, StepClock
from dpbench.measure.script.watching import ScriptWatcher
from dpbench.measure.window import joined
from dpbench.records.trial import RankMeasurement, ScriptFacts
from dpbench.rendezvous.process_group import default_group_class


def measurement(
    clock: StepClock,
    watcher: ScriptWatcher,
    segments: Sequence[ScriptSegment],
    started: float,
) -> RankMeasurement:
    """The measurement as records have it; `started` is when the rank began."""
    modes: list[Mode] = ["as-is", "no-sync", "cached"]
    by_mode = [[segment for segment in segments if segment.mode == mode] for mode in modes]
    timed, without, cached = (
        joined([segment.window(counts_samples=clock.counts_samples) for segment in same_mode])
        if same_mode
        else None
        for same_mode in by_mode
    )
    assert timed is not None
    device_bytes, reserved_bytes = peak_device_memory(clock.device)
    modules = [] if watcher.wrapper is None else watcher.wrapper.modules()
    return RankMeasurement(
        rank=clock.store.rank,
        pid=os.getpid(),
        device=str(clock.device),
        timed=timed,
        without_sync=without,
        cached=cached if any(segment.repeated for segment in segments) else None,
        script=_facts(clock, watcher, by_mode[0]),
        threads=torch.get_num_threads(),
        sync_batch_norms=sum(isinstance(module, torch.nn.SyncBatchNorm) for module in modules),
        setup_seconds=(clock.first_step or started) - started,
        peak_host_memory_bytes=peak_host_memory_bytes(),
        peak_device_memory_bytes=device_bytes,
        peak_reserved_memory_bytes=reserved_bytes,
        group_class=default_group_class(clock.device) if dist.is_initialized() else None,
        item="samples" if clock.counts_samples else "steps",
        warmup_steps=clock.trial.warmup_steps,
        timed_steps=len(timed.step_seconds),
    )


def _facts(clock: StepClock, watcher: ScriptWatcher, as_is: Sequence[ScriptSegment]) -> ScriptFacts:
    wrapper, loader = watcher.wrapper, watcher.feeding_loader
    steps = [counts for segment in as_is for counts in segment.counts]
    return ScriptFacts(
        steps=len(steps),
        forwards=sum(counts.forwards for counts in steps),
        reducing_forwards=sum(counts.reducing_forwards for counts in steps),
        loader_workers=None if loader is None else loader.num_workers,
        pins_memory=bool(loader and loader.pin_memory),
        keeps_workers=bool(loader and loader.persistent_workers),
        is_wrapped=wrapper is not None,
        finds_unused=bool(wrapper and wrapper.find_unused_parameters),
        has_unused=clock.has_unused,
        differing_parameter=clock.differing,
        same_samples=clock.same_samples,
        gpu=gpu_uuid(clock.device),
    )
