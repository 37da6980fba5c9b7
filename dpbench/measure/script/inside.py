"""The program of a script's rank: it watches the script from inside, and runs it.

    python inside.py TASK train.py --epochs 1
    python inside.py TASK -m package.train

TASK is a `ScriptTask`. No code of the script runs after the last measured step:
it may save, evaluate, or wait for others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NoReturn, get_args

if __name__ == "__main__":  # in place of this folder, whose modules have common names
    sys.path[0] = str(Path(__file__).parents[3])

from dpbench.codec import encode, from_json
from dpbench.measure.script.clock import Mode, RankStore, ScriptSegment, StepClock
from dpbench.measure.script.task import ScriptTask
from dpbench.measure.script.watching import ScriptFault, ScriptWatcher

MIN_TIME_SECONDS = 0.01


class ScriptRun:
    """The run of the script, from its first line to the last measured step."""

    def __init__(self, task: ScriptTask) -> None:
        self.task, self.started = task, perf_counter()
        self.watcher = ScriptWatcher(task.trial)
        store = RankStore(task.rank, task.trial.group_size, task.port)
        self.clock = StepClock(task.trial, store, self.inspect, self.finish)

    def run(self, script: list[str]) -> NoReturn:
        """Run the script up to its last measured step, or until it fails or takes too few."""
        self.watcher.watch(self.clock)
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
        if self.clock.measured and status in (0, None):
            self.clock.script_ended()
        if isinstance(status, int) and status != 0:
            after = f" after {self.clock.taken} optimizer steps" if self.clock.taken else ""
            self.fail(f"the script ended with status {status}{after}", has_written=True)
        self.fail(self.too_short(status))

    def inspect(self) -> dict[str, Any]:
        """What ranks are compared by, and what is known of the model; see `StepClock`."""
        return {
            "digests": self.watcher.digests(self.clock.optimizer),
            "batch": self.watcher.batch_digest(),
            "unused": self.watcher.has_unused_parameters(),
        }

    def too_short(self, status: object) -> str:
        """Why a script that has ended was not measured."""
        trial = self.task.trial
        needed = trial.warmup_steps + len(get_args(Mode)) * trial.timed_steps
        how = "ended" if status in (0, None) else f"called sys.exit({status!r})"
        if self.clock.taken == 0:
            return (
                f"the script {how} before an optimizer took a step in this process; expected "
                "training with a torch.optim optimizer"
            )
        return (
            f"the script {how} after {self.clock.taken} optimizer steps; it needs about "
            f"{needed}: let it train longer, or lower --warmup and --steps"
        )

    def finish(self, segments: list[ScriptSegment]) -> NoReturn:
        """Hand over what was measured, and end the process."""
        from dpbench.measure.script.report import measurement

        if not segments:  # the script of another rank has ended
            self.fail(self.too_short(0))
        if call := self.watcher.missing_call():
            self.fail(
                f"the script makes no {call} before its first steps, and this row replaces it or "
                "its arguments"
            )
        measured = measurement(self.clock, self.watcher, segments, self.started)
        self.clock.store.exchange(over=True)  # others may still need this rank's connections
        self.leave(measurement=encode(measured))

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
        faulthandler.dump_traceback_later(left, file=stack)
        ScriptRun(task).run(sys.argv[2:])
