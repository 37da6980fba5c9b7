"""A rank of a trial whose program is the user's script: a fresh Python of its own, as torchrun
starts it, below the process that dpbench starts for each rank."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dpbench.codec import decode, encode, json_bytes
from dpbench.errors import DpbenchError
from dpbench.launch.rank_process import end_descendants, output_path, stack_path
from dpbench.measure.script import program
from dpbench.messages import one_line
from dpbench.parent_death import tied_to_this_process
from dpbench.records.trial import RankMeasurement
from dpbench.rendezvous.placement import Placement
from dpbench.specs import Configuration


def measure_script(
    configuration: Configuration,
    scratch: Path,
    deadline: float,
    rank: int,
) -> RankMeasurement:
    """Run the trial's script as `rank`, in a process that ends with this one.

    At the `deadline`, on the monotonic clock, it writes its stack to `scratch`.
    """
    faulthandler.cancel_dump_traceback_later()  # the script's process writes its own stack
    result = scratch / f"rank{rank}.json"
    task = program.ScriptTask(
        configuration=configuration,
        rank=rank,
        port=int(os.environ["MASTER_PORT"]),
        result=str(result),
        stack=str(stack_path(scratch, rank)),
        deadline=deadline,
    )
    task_json = json_bytes(encode(task)).decode()
    python = [sys.executable, "-u", program.__file__, task_json, *configuration.script_command]
    process = subprocess.Popen(
        tied_to_this_process(python),
        env=script_environment(configuration, rank, os.environ, task.port),
        stdin=subprocess.DEVNULL,
    )
    code = process.wait()
    end_descendants()  # such as workers of its loader
    if not result.exists():
        if code < 0:
            os.kill(os.getpid(), -code)  # so that the launcher sees how the script ended
        reason = f"the script ended its process with status {code}"
        raise DpbenchError(reason + _last_line(scratch, rank))
    report = json.loads(result.read_text())
    if failure := report.get("failure"):
        kind, reason = failure["kind"], failure["text"]
        if failure["has_written"]:
            reason += _last_line(scratch, rank)
        raise DpbenchError(f"{kind}: {reason}" if kind else reason)
    return decode(RankMeasurement, report["measurement"])


def _last_line(scratch: Path, rank: int) -> str:
    """The last line that the rank's script wrote to stderr, after a colon; empty without any."""
    path = output_path(scratch, rank, "stderr")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [one_line(line) for line in text.splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def script_environment(
    configuration: Configuration, rank: int, environ: Mapping[str, str], port: int
) -> dict[str, str]:
    """The environment of the script as `rank`, as torchrun would set it.

    A rank without communication is alone in its world, and sees its own GPU only. `port` is the one
    where all ranks meet.
    """
    together = configuration.traits.communicates
    number, size = (rank, configuration.group_size) if together else (0, 1)
    place = replace(
        Placement.first_of(size, port if together else 0),  # alone, it holds a store at a free port
        rank=number,
        local_rank=number,
        has_store=together,
    )
    environment = {
        **environ,
        **place.variables,
        "OMP_NUM_THREADS": str(configuration.threads),
        "DPBENCH": "1",
    }
    devices: Sequence[str] = configuration.devices
    if not together:
        devices = devices[rank : rank + 1]
    if devices[0] != "cpu":
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        ids = [device.partition(":")[2] for device in devices]
        if visible:
            ids = [visible.split(",")[int(number)] for number in ids]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(ids)
    return environment
