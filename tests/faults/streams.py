"""Standard streams that are closed or full."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

from dpbench import store
from dpbench.records.trial import Status
from tests.cli.command import dpbench, environment
from tests.faults.scenario import Scenario, Try, expect

TINY = "--arch mlp --data synthetic --gpus 2 --oversubscribe"
COMMANDS = {
    "sweep": f"sweep {TINY} --implementations ddp --batch-sizes 4 --steps 2 --warmup 0 "
    "--repetitions 1 --no-charts --name real",
    "train": f"train {TINY} --limit-train 32 --batch-size 4 --epochs 1 --name t",
    "report": "report results/synthetic",
}
SYNTHETIC = ("sweep", "--gpus", "1", "--no-charts", "--name", "synthetic")
REDIRECTIONS = {">&-": 0, "2>&-": 0, "<&- >&- 2>&-": 0, ">/dev/full": 1, "2>/dev/full": 0}
"""With the exit status that they lead to."""


def closed(tries: int) -> Iterator[Try]:
    for command, redirection in islice(product(COMMANDS, REDIRECTIONS), tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if command == "report":
                dpbench(*SYNTHETIC, cwd=folder)
            words = f"exec {shlex.quote(sys.executable)} -m dpbench {COMMANDS[command]}"
            done = subprocess.run(
                f"{words} {redirection}",
                shell=True,
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            expected = REDIRECTIONS[redirection]
            status = f"{command} {redirection} exits with {expected}, not {done.returncode}"
            yield Try(
                expect(
                    **{f"{status}: {done.stderr[-200:]}": done.returncode == expected},
                    **{f"no traceback: {done.stderr[-300:]}": "Traceback" not in done.stderr},
                    its_work_is_done=_is_done(command, folder),
                )
            )


def _is_done(command: str, folder: Path) -> bool:
    if command == "sweep":
        records = store.load(folder / "results/real").records
        return [record.status for record in records] == [Status.COMPLETED] * 3
    if command == "train":
        return any((folder / "runs/t/checkpoints").glob("step-*.pt"))
    return (folder / "results/synthetic/report/index.html").exists()


SCENARIOS = (
    Scenario(
        name="closed and full standard streams",
        promise="the work is done, the exit status stands, no traceback",
        tries=len(COMMANDS) * len(REDIRECTIONS),
        run=closed,
    ),
)
