"""Times a script's steps in segments, in an order on which all ranks agree.

A step ends when the script's first optimizer has stepped. After the warm-up, in which the ranks
compare what they train, short segments take turns: every mode that the script has, as a palindrome.
Such a round is measured when it is whole. A segment begins on all ranks at once, with idle devices.
The script's own garbage collection, printing and logging stay as they are: they are part of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from dpbench.measure.device import memory_peaks
from dpbench.measure.script.watching import ScriptWatcher, StepCounts
from dpbench.measure.window import SegmentTimer
from dpbench.parallel.devices import synchronize
from dpbench.records.trial import MemoryPeaks, Mode, Window
from dpbench.specs import Configuration

SEGMENT_SECONDS = 0.1
MIN_SCRIPT_SEGMENT_STEPS = 5
"""More than in other windows, as some may be left out; see ScriptSegment.end."""
QUEUE_LIMIT = 64
"""Most steps in which a queue of batches is emptied."""


@dataclass
class ScriptSegment:
    """Consecutive steps of one mode."""

    mode: Mode
    steps: int
    counts: list[StepCounts] = field(default_factory=list)
    """The counts of each step so far."""
    window: Window = field(init=False)
    """The steps that were not interrupted, or all if there are no others; set by `end`."""

    def end(self, whole: Window, *, counts_samples: bool) -> None:
        """End the segment with the window of all its steps, of which each counts as one sample
        unless samples are counted."""
        step_seconds = whole.step_seconds
        kept = [k for k, counts in enumerate(self.counts) if not counts.interrupted]
        kept = kept or [*range(len(step_seconds))]
        seconds = tuple(step_seconds[k] for k in kept)
        # On CUDA the host times the segment and the device its steps.
        share = sum(seconds) / sum(step_seconds)
        self.window = replace(
            whole,
            seconds=whole.seconds * share,
            step_seconds=seconds,
            samples=sum(self.counts[k].samples if counts_samples else 1 for k in kept),
            cpu_seconds=(whole.cpu_seconds or 0.0) * share,
            page_faults=round((whole.page_faults or 0) * share),
        )


class ScriptTimer:
    """Times the segments one after the other, while the script takes its steps."""

    def __init__(
        self, configuration: Configuration, watcher: ScriptWatcher, store: Store, rank: int
    ) -> None:
        """`store` is the launcher's, by which the ranks exchange values: the script's own process
        group is not touched, and it need not have one."""
        self._configuration, self._watcher = configuration, watcher
        self._store, self._rank, self._exchanges = store, rank, 0
        self.measured: list[ScriptSegment] = []
        """The segments of whole rounds."""
        self.peaks: MemoryPeaks | None = None
        """Peaks of memory until the end of the first measured segment."""
        self.findings: dict[str, Any] = {}
        """Fields of ScriptFacts that ranks find by comparing themselves."""
        self.counts_samples = False
        """Whether a DataLoader feeds the steps of some rank."""
        self.optimizer: torch.optim.Optimizer | None = None
        """The optimizer whose steps count."""
        self.first_step: float | None = None
        """When its first step ended."""
        self.device = torch.device("cpu")
        self._timer = SegmentTimer([self.device])
        """Timer of the segment. It begins on the CPU, as no step has told the device yet."""
        self._segments = self._segments_in_order()
        self._segment = next(self._segments)
        """The segment that is under way."""

    def step_ended(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that an optimizer has stepped; returns whether no further steps are timed: all are,
        or the script of another rank has ended."""
        if self.optimizer is None:
            self.optimizer = optimizer
            self.first_step = perf_counter()
            self.device = optimizer.param_groups[0]["params"][0].device
        elif optimizer is not self.optimizer:
            return False
        segment = self._segment
        self._timer.step_ended()
        segment.counts.append(self._watcher.end_step())
        if len(segment.counts) < segment.steps:
            return False
        whole = self._timer.end(sum(counts.samples for counts in segment.counts))
        segment.end(whole, counts_samples=self.counts_samples)
        following = next(self._segments, None)
        if following is None:
            return True
        self._segment, self._watcher.mode = following, following.mode
        synchronize(self.device)
        self._timer = SegmentTimer([self.device])
        return False

    def _segments_in_order(self) -> Iterator[ScriptSegment]:
        """Each segment, and once it has ended on all ranks the next one; no more when the script of
        another rank has ended."""
        steps = self._configuration.warmup
        first, second = (ScriptSegment("timed", max(n, 1)) for n in (-(-steps // 2), steps // 2))
        yield first
        if not self.exchange():
            return
        batch_between = self._watcher.batch_digest()
        yield second
        watcher, together = self._watcher, self._configuration.traits.communicates
        reports = self.exchange(
            pace=median(second.window.step_seconds),
            syncs=any(counts.reducing_forwards for counts in second.counts),
            loads=any(counts.samples for counts in second.counts),
            queued=max(counts.queued_batches for counts in first.counts + second.counts),
            batch=watcher.batch_digest() if together else None,
            digests=watcher.digests(self.optimizer) if together else {},
        )
        if not reports:
            return
        self.counts_samples = any(report["loads"] for report in reports)
        of_first, *others = reports
        last_batch, numbers = of_first["batch"], of_first["digests"]
        is_new = None not in (last_batch, batch_between) and last_batch != batch_between
        differing = (
            name
            for name, number in numbers.items()
            if any(report["digests"].get(name, number) != number for report in others)
        )
        self.findings = {
            "has_unused": together and watcher.has_unused_parameters(),
            "differing_parameter": next(differing, None),
            "same_samples": bool(others)
            and is_new
            and all(report["batch"] == last_batch for report in others),
        }
        for measured, all_in_order in self._rounds(reports):
            for segment in all_in_order:
                yield segment
                if not self.exchange():
                    return
                # Later segments need memory that the script does not, for a kept batch.
                self.peaks = self.peaks or memory_peaks(self.device)
            self.measured += measured

    def exchange(self, **values: Any) -> list[dict[str, Any]]:
        """The values of all ranks, once all have called this, copies that train alone as well; []
        if one of them has said with `ended` that it takes no more steps."""
        self._exchanges += 1
        ranks = range(self._configuration.group_size)
        keys = [f"dpbench {self._exchanges} {rank}" for rank in ranks]
        self._store.set(keys[self._rank], json.dumps(values))
        reports = [json.loads(text) for text in self._store.multi_get(keys)]
        return [] if any("ended" in report for report in reports) else reports

    def _rounds(
        self, reports: list[dict[str, Any]]
    ) -> Iterator[tuple[list[ScriptSegment], list[ScriptSegment]]]:
        """The measured segments of each round, and all its segments in order."""
        configuration = self._configuration
        pace = max(report["pace"] for report in reports)
        size = max(math.ceil(SEGMENT_SECONDS / pace), MIN_SCRIPT_SEGMENT_STEPS)
        size = min(size, max(configuration.steps // 2, 1))
        modes: list[Mode] = ["timed"]
        if configuration.traits.communicates and configuration.is_instrumented:
            if configuration.group_size > 1 and all(report["syncs"] for report in reports):
                modes.append("unsynced")
            if all(report["loads"] for report in reports):
                modes.append("cached")
        queued = max(report["queued"] for report in reports)
        for _ in range(math.ceil(configuration.filling_steps(pace) / (2 * size))):
            measured = [ScriptSegment(mode, size) for mode in (*modes, *reversed(modes))]
            all_in_order = [*measured]
            if "cached" in modes and queued:
                # Workers fill their queue in the two cached segments, which are in the middle. Its
                # batches would cost the next segment nothing.
                emptying = ScriptSegment("timed", min(queued, QUEUE_LIMIT))
                all_in_order.insert(len(modes) + 1, emptying)
            yield measured, all_in_order
