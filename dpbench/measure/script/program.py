"""The program of a script's rank: it runs the script, and times its steps from within.

    python program.py TASK train.py --epochs 1
    python program.py TASK -m package.train

TASK is a `ScriptTask` as JSON. No code of the script runs after the last measured step:
it may save, evaluate, or wait for others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NoReturn, get_args

if __name__ == "__main__":  # in place of this folder, whose modules have common names
    sys.path[0] = str(Path(__file__).parents[3])

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from dpbench.codec import encode, from_json
from dpbench.measure.device import gpu_uuid
from dpbench.measure.script.timing import ScriptSegment, ScriptTimer
from dpbench.measure.script.watching import ScriptFault, ScriptWatcher
from dpbench.records.trial import Mode, RankMeasurement, ScriptFacts, TrialFacts, Window
from dpbench.rendezvous.placement import LOOPBACK
from dpbench.rendezvous.process_group import default_group_class
from dpbench.specs import Configuration

MIN_TIME_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTask:
    """One rank's part of a trial of a script, as the launcher tells it on the command line."""

    configuration: Configuration
    rank: int
    port: int
    """Where the launcher's store listens on this host."""
    result: str
    """The file for what was measured."""
    stack: str
    """The file for the stack of a rank that takes too long."""
    deadline: float
    """When it takes too long, on the host's monotonic clock."""


class ScriptRun:
    """The run of the script, from its first line to the last measured step."""

    def __init__(self, task: ScriptTask) -> None:
        self.task, self.started = task, perf_counter()
        self.watcher = ScriptWatcher(task.configuration)
        address, forever = (LOOPBACK, task.port), timedelta(days=7)  # the trial has a time limit
        store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=forever)
        self.timer = ScriptTimer(task.configuration, self.watcher, store, task.rank)

    def run(self, script: list[str]) -> NoReturn:
        """Run the script up to its last measured step, or until it fails or takes too few."""
        self.watcher.watch()
        register_optimizer_step_post_hook(self.step_ended)
        status: object = 0
        try:
            if script[0] == "-m":
                sys.path[0], sys.argv = str(Path.cwd()), script[1:]
                runpy.run_module(script[1], run_name="__main__", alter_sys=True)
            else:
                sys.path[0], sys.argv = str(Path(script[0]).resolve().parent), script
                runpy.run_path(script[0], run_name="__main__")
        except SystemExit as leaving:
            status = leaving.code
        except ScriptFault as fault:
            self.fail(str(fault))
        except BaseException as error:
            from dpbench.architecture.user_errors import raised_at

            traceback.print_exc()
            message = next(iter(str(error).splitlines()), "")
            self.fail(f"{message}{raised_at(error)}", kind=type(error).__name__)
        if isinstance(status, int) and status != 0:
            after = f" after {self.watcher.steps} optimizer steps" if self.watcher.steps else ""
            self.fail(f"the script ended with status {status}{after}", has_written=True)
        if self.timer.measured and status in (0, None):
            # Whole rounds count; the other ranks, whose scripts end as well, do the same.
            self.timer.exchange(ended=True)
            self.finish()
        self.fail(self.too_short(status))

    def step_ended(self, optimizer: Optimizer, *_: Any) -> None:
        """Let the timer know of a step; after the last one the script goes no further."""
        if self.timer.step_ended(optimizer):
            self.finish()

    def too_short(self, status: object) -> str:
        """Why a script that has ended was not measured."""
        configuration = self.task.configuration
        needed = configuration.warmup + len(get_args(Mode)) * configuration.steps
        how = "ended" if status in (0, None) else f"called sys.exit({status!r})"
        if self.watcher.steps == 0:
            return (
                f"the script {how} before an optimizer took a step in this process; expected "
                "training with a torch.optim optimizer"
            )
        return (
            f"the script {how} after {self.watcher.steps} optimizer steps; it needs about "
            f"{needed}: let it train longer, or measure fewer steps"
        )

    def finish(self) -> NoReturn:
        """Hand over what was measured, and end the process."""
        if not self.timer.measured:  # the script of another rank has ended
            self.fail(self.too_short(0))
        if call := self.watcher.missing_call():
            self.fail(
                f"the script makes no {call} before its first steps, and this row replaces it or "
                "its arguments"
            )
        measured = self.measurement()
        self.timer.exchange(ended=True)  # others may still need this rank's connections
        self.leave(measurement=encode(measured))

    def measurement(self) -> RankMeasurement:
        """The measurement of the whole rounds."""
        timer, device = self.timer, self.timer.device
        segments: dict[Mode, list[ScriptSegment]] = {}
        for segment in timer.measured:
            segments.setdefault(segment.mode, []).append(segment)
        cached = [counts for segment in segments.get("cached", ()) for counts in segment.counts]
        if not any(counts.repeated_batches for counts in cached):
            segments.pop("cached", None)
        assert timer.peaks is not None  # a segment was measured
        modules = [] if self.watcher.wrapper is None else self.watcher.wrapper.modules()
        facts = TrialFacts(
            item="samples" if timer.counts_samples else "steps",
            group_class=default_group_class(device),
            sync_batch_norms=sum(isinstance(module, torch.nn.SyncBatchNorm) for module in modules),
        )
        return RankMeasurement(
            rank=self.task.rank,
            pid=os.getpid(),
            device=str(device),
            windows={
                mode: Window.of_segments([segment.window for segment in parts])
                for mode, parts in segments.items()
            },
            script=self.facts(segments["timed"]),
            threads=torch.get_num_threads(),
            setup_seconds=(timer.first_step or self.started) - self.started,
            peaks=timer.peaks,
            facts=facts if self.task.rank == 0 else None,
        )

    def facts(self, timed: list[ScriptSegment]) -> ScriptFacts:
        """The facts about the steps that the script takes as it is."""
        wrapper, loader = self.watcher.wrapper, self.watcher.feeding
        steps = [counts for segment in timed for counts in segment.counts]
        return ScriptFacts(
            steps=len(steps),
            forwards=sum(counts.forwards for counts in steps),
            reducing_forwards=sum(counts.reducing_forwards for counts in steps),
            loader_workers=None if loader is None else loader.num_workers,
            pins_memory=bool(loader and loader.pin_memory),
            keeps_workers=bool(loader and loader.persistent_workers),
            is_wrapped=wrapper is not None,
            finds_unused=bool(wrapper and wrapper.find_unused_parameters),
            gpu=gpu_uuid(self.timer.device),
            **self.timer.findings,
        )

    def fail(self, text: str, *, kind: str = "", has_written: bool = False) -> NoReturn:
        """Say why the script was not measured: the type of an exception that it raised and the
        text, or the text and what the script `has_written` about it to stderr."""
        self.leave(failure={"kind": kind, "text": text, "has_written": has_written})

    def leave(self, **result: Any) -> NoReturn:
        """Write the result, and end the process without any more code of the script."""
        path = Path(self.task.result)
        path.with_suffix(".part").write_text(json.dumps(result))
        path.with_suffix(".part").rename(path)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


if __name__ == "__main__":
    task = from_json(ScriptTask, sys.argv[1])
    with Path(task.stack).open("a") as stack:
        left = max(task.deadline - monotonic(), MIN_TIME_SECONDS)
        faulthandler.dump_traceback_later(min(left, threading.TIMEOUT_MAX), file=stack)
        ScriptRun(task).run(sys.argv[2:])
