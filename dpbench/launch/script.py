"""A rank of a trial whose program is the user's script: a fresh Python of its own, as torchrun
starts it, below the process that this host's other ranks run in."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from dpbench.errors import DpbenchError
from dpbench.launch.rank import stack_path
from dpbench.launch.worker import tied_to_this_process
from dpbench.measure.script import inside
from dpbench.measure.trial import RankReport
from dpbench.measure.window import joined
from dpbench.records.trial import RankMeasurement, ScriptFacts, Window
from dpbench.rendezvous.launch_variables import GLOO_INTERFACE
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
MOST_ROUND_MODES = 3
ALONE = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1"),
    "MASTER_PORT": "0",  # it holds its own store, at a free port
}
"""The variables of a rank that trains alone."""
OF_RANK = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


class ScriptFailed(DpbenchError):
    """The script of a rank raised, or cannot be measured. The launcher names the type of what a
    rank raised: here that of the script's exception, in a subclass of its name."""


def measure_script(
    trial: TrialSpec, scratch: Path, environ: Mapping[str, str], deadline: float, rank: int
) -> RankReport:
    """Run the trial's script as `rank`, in a process that ends with this one.

    Args:
        environ: the variables that the user has set.
        deadline: when it writes its stack to `scratch`, on the host's monotonic clock.
    """
    faulthandler.cancel_dump_traceback_later()  # the script's process writes its own stack
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    result = scratch / f"rank{rank}.json"
    plan = {
        "warmup": trial.warmup_steps,
        "steps": trial.timed_steps,
        "seconds": trial.window_seconds or 0.0,
        "varies": _is_together(trial),
        "peers": {
            "rank": rank,
            "size": trial.group_size,
            "address": os.environ["MASTER_ADDR"],
            "port": int(os.environ["MASTER_PORT"]),
        },
        "needs": trial.warmup_steps + MOST_ROUND_MODES * trial.timed_steps,
        "result": str(result),
        "stack": str(stack_path(scratch, rank)),
        "deadline": deadline,
    }
    python = [sys.executable, "-u", inside.__file__, json.dumps(plan), *trial.workload.script]
    process = subprocess.Popen(
        tied_to_this_process(python),
        env=variables(trial, rank, environ, os.environ),
        stdin=subprocess.DEVNULL,
    )
    code = process.wait()
    _end_children()
    if not result.exists():
        if code < 0:
            os.kill(os.getpid(), -code)  # so that the launcher sees how the script ended
        raise _failure("", f"the script ended its process with status {code}")
    found = json.loads(result.read_text())
    if "failure" in found:
        raise _failure(**found["failure"])
    return _report(trial, rank, found["measured"])


def variables(
    trial: TrialSpec, rank: int, environ: Mapping[str, str], of_rank: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the script as `rank`, as torchrun would set it.

    A rank without communication is alone in its world, and sees its own GPU only.
    """
    found = {
        **environ,
        **{name: of_rank[name] for name in OF_RANK},
        "ROLE_RANK": of_rank["RANK"],
        "ROLE_WORLD_SIZE": of_rank["WORLD_SIZE"],
        "ROLE_NAME": "default",
        "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "dpbench",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": str(trial.threads_per_replica),
        "DPBENCH": "1",
    }
    found.setdefault(GLOO_INTERFACE, "lo")
    devices: Sequence[str] = trial.devices
    if not _is_together(trial):
        found |= ALONE
        del found["TORCHELASTIC_USE_AGENT_STORE"]
        devices = devices[rank : rank + 1]
    if devices[0] != "cpu":
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        ids = [device.partition(":")[2] for device in devices]
        if visible:
            ids = [visible.split(",")[int(number)] for number in ids]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(ids))
    return found


def _is_together(trial: TrialSpec) -> bool:
    """Whether the ranks are in one world; otherwise each of them is alone."""
    return IMPLEMENTATIONS[trial.implementation].communicates


def _end_children() -> None:
    """End what the script has left behind, such as workers of its loader. This process reaps it, so
    its time counts as the trial's."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _failure(kind: str, text: str) -> ScriptFailed:
    failed: type[ScriptFailed] = type(kind, (ScriptFailed,), {})
    return failed(text)


def _report(trial: TrialSpec, rank: int, found: dict[str, Any]) -> RankReport:
    """The measurement as records have it."""
    left_out = 0
    windows: dict[str, list[Window]] = {}
    counts = found["counts_samples"]
    repeated = sum(one["repeated"] for one in found["segments"])
    for one in found["segments"]:
        steps = len(one["step_seconds"])
        interrupted = {*one["interrupted"]}
        kept = [k for k in range(steps) if k not in interrupted] or [*range(steps)]
        left_out += (steps - len(kept)) * (one["mode"] == "as-is")
        seconds = [one["step_seconds"][k] for k in kept]
        # On CUDA the host times the segment and the device its steps.
        share = sum(seconds) / sum(one["step_seconds"])
        windows.setdefault(one["mode"], []).append(
            Window(
                start_seconds=one["start"],
                seconds=one["seconds"] * share,
                step_seconds=tuple(seconds),
                samples=sum(one["samples"][k] for k in kept) if counts else len(kept),
                cpu_seconds=one["cpu_seconds"] * share,
            )
        )
    timed = joined(windows["as-is"])
    without, cached = windows.get("no-sync"), windows.get("cached")
    return RankReport(
        item="samples" if counts else "steps",
        items_per_sample=1,
        measurement=RankMeasurement(
            rank=rank,
            pid=found["pid"],
            device=found["device"],
            timed=timed,
            without_sync=joined(without) if without else None,
            cached=joined(cached) if cached and repeated else None,
            script=ScriptFacts(**found["facts"], left_out_steps=left_out),
            threads=found["threads"],
            sync_batch_norms=found["sync_batch_norms"],
            setup_seconds=found["setup_seconds"],
            peak_host_memory_bytes=found["host_bytes"],
            peak_device_memory_bytes=found["device_bytes"],
            peak_reserved_memory_bytes=found["reserved_bytes"],
            warmup_steps=trial.warmup_steps,
            timed_steps=len(timed.step_seconds),
        ),
    )
