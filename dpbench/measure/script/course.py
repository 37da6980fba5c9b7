"""The course of a script's measurement: the order of its segments, on which all ranks agree.

After the warm-up, in which the ranks compare what they train, short segments of steps take turns:
every mode that the script has, as a palindrome. A round is measured when it is whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import median
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dpbench.measure.script.clock import ScriptSegment
from dpbench.records.trial import Mode
from dpbench.rendezvous.placement import LOOPBACK
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.trial import MAX_FILLING_STEPS, MIN_SEGMENT

SEGMENT_SECONDS = 0.1
QUEUE_LIMIT = 64
"""Most steps in which a queue of batches is emptied."""
FOREVER = timedelta(days=7)
"""The trial's time limit ends a wait, and says what for."""


class ScriptOver(Exception):
    """The script of some rank has ended."""


class RankStore:
    """The launcher's store, by which the ranks of the trial exchange values: the script's own
    process group is not touched, and it need not have one. Copies that train alone start together,
    too."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        self.rank, self.size, self._count = rank, size, 0
        self._store = (
            TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=FOREVER)
            if size > 1
            else None
        )

    def exchange(self, **values: Any) -> list[dict[str, Any]]:
        """The values of all ranks, once all have called this: a barrier."""
        if self._store is None:
            return [values]
        self._count += 1
        keys = [f"dpbench {self._count} {rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps(values))
        self._store.wait(keys)
        return [json.loads(self._store.get(key)) for key in keys]


class Course:
    """The segments of a script's steps, each when the one before has ended on all ranks. They end
    early if the script of a rank does."""

    def __init__(
        self, trial: TrialSpec, store: RankStore, inspect: Callable[[], dict[str, Any]]
    ) -> None:
        """`inspect` is called in the warm-up and after it: "digests" with a number for each
        parameter, and "batch" for the samples, to compare ranks by; and whether there are "unused"
        parameters."""
        self._trial, self._store, self._inspect = trial, store, inspect
        self.measured: list[ScriptSegment] = []
        """The segments of whole rounds."""
        self.findings: dict[str, Any] = {}
        """Fields of ScriptFacts that ranks find by comparing themselves."""
        self.counts_samples = False
        """Whether a DataLoader feeds the steps of some rank."""
        self._queued = 0
        """Batches that a loader's workers may have ready."""

    def leave(self) -> None:
        """Tell the other ranks that this one takes no more steps."""
        self._store.exchange(over=True)

    def __iter__(self) -> Iterator[ScriptSegment]:
        with suppress(ScriptOver):
            for number, segment in enumerate(self._plan()):
                if number > 0:
                    self._exchange()
                yield segment
                self._queued = max(self._queued, *(one.queued_batches for one in segment.counts))

    def _exchange(self, **values: Any) -> list[dict[str, Any]]:
        reports = self._store.exchange(**values)
        if any("over" in report for report in reports):
            raise ScriptOver
        return reports

    def _plan(self) -> Iterator[ScriptSegment]:
        warmup, steps = self._trial.warmup_steps, self._trial.timed_steps
        together = IMPLEMENTATIONS[self._trial.implementation].communicates
        yield ScriptSegment("as-is", max(warmup - warmup // 2, 1))
        earlier = self._inspect().get("batch") if together else None
        timed = ScriptSegment("as-is", max(warmup // 2, 1))
        yield timed
        inspected = self._inspect() if together else {}
        reports = self._exchange(
            pace=median(timed.step_seconds),
            syncs=any(counts.reducing_forwards for counts in timed.counts),
            loads=any(counts.samples for counts in timed.counts),
            **inspected,
        )
        self._compare(inspected, reports, earlier)
        size = math.ceil(SEGMENT_SECONDS / max(report["pace"] for report in reports))
        size = min(max(size, MIN_SEGMENT), steps // 2)
        modes: list[Mode] = ["as-is"]
        if together:
            synchronizes = self._store.size > 1 and all(report["syncs"] for report in reports)
            modes += ["unsynced"] * synchronizes
            modes += ["cached"] * all(report["loads"] for report in reports)
        done, seconds, filled = 0, 0.0, self._trial.window_seconds or 0.0
        while done < steps or (seconds < filled and done < MAX_FILLING_STEPS):
            ahead: list[ScriptSegment] = []
            for mode in (*modes, *reversed(modes)):
                if ahead and ahead[-1].mode == "cached" != mode and self._queued:
                    # Workers have filled their queue meanwhile: its batches would cost nothing.
                    yield ScriptSegment("as-is", min(self._queued, QUEUE_LIMIT))
                ahead.append(ScriptSegment(mode, size))
                yield ahead[-1]
            self.measured += ahead
            done += 2 * size
            as_is = sum(segment.seconds for segment in ahead if segment.mode == "as-is")
            seconds += max(report["seconds"] for report in self._exchange(seconds=as_is))

    def _compare(
        self, inspected: Mapping[str, Any], reports: Sequence[Mapping[str, Any]], earlier: Any
    ) -> None:
        """Note what this rank has `inspected`, with an `earlier` batch, and all have reported."""
        self.counts_samples = any(report["loads"] for report in reports)
        batches = [report.get("batch") for report in reports]
        is_same = len(reports) > 1 and batches == batches[:1] * len(batches)
        digests = [report.get("digests", {}) for report in reports]
        differing = (
            name
            for name, number in digests[0].items()
            if any(own.get(name, number) != number for own in digests)
        )
        self.findings = {
            "has_unused": inspected.get("unused", False),
            "differing_parameter": next(differing, None),
            "same_samples": is_same and None not in (batches[0], earlier) and batches[0] != earlier,
        }
