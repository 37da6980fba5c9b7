"""A timeline of a few steps for chrome://tracing or Perfetto, from torch's profiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from dpbench.files import write_whole
from dpbench.measure.feed import StepBatches
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.training import Phase, Trainer
from dpbench.measure.window import between_barriers
from dpbench.specs import TrialSpec


def trace_path(folder: Path, trial: TrialSpec, rank: int) -> Path:
    """Path of a rank's timeline."""
    return folder / f"trace-{trial.trial_id}-rank{rank}.json"


def write_trace(
    path: Path,
    trainer: Trainer,
    batches: Sequence[StepBatches],
    device: torch.device,
    ranks: RankGroup,
) -> None:
    """Train on `batches` under the profiler, with each phase as a named range, and write `path`."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    every_thread = _ExperimentalConfig(profile_all_threads=True)  # dp's replicas are threads
    profiler = profile(activities=activities, experimental_config=every_thread)
    with between_barriers(device, ranks), profiler:
        for step in batches:
            with _Ranges() as ranges:
                trainer.step(step, enter=ranges.enter)
    trainer.take_losses()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The profiler takes only a path: a random one, so that nobody can place a link there.
    write_whole(path, lambda file: profiler.export_chrome_trace(str(file.name)))


class _Ranges(ExitStack):
    """Consecutive named ranges, and one range around them all."""

    def __enter__(self) -> _Ranges:
        super().__enter__()
        self.enter_context(record_function("step"))
        self._phase = self.enter_context(ExitStack())
        return self

    def enter(self, phase: Phase | None) -> None:
        self._phase.close()
        if phase is not None:
            self._phase.enter_context(record_function(phase))
