"""`dpbench launch`: torchrun, whose workers share the cores and die with it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import typer

from dpbench.messages import say

LAUNCH_HELP = """Usage: dpbench launch [OPTIONS] SCRIPT [ARGUMENTS]...

  Start a script in several processes or nodes, like torchrun.

  dpbench launch --nproc-per-node 4 train.py --lr 0.1
  dpbench launch --nnodes 2 --node-rank 0 --rdzv-endpoint host0:29500 -m package.train

Beyond torchrun:
  Each process gets its share of the cores, unless OMP_NUM_THREADS is set.
  Workers die with the launcher, even after kill -9 (Linux).
  Lines on stderr begin with their rank; the first failure is repeated at the end.
  A single node listens on 127.0.0.1 only.

--rdzv-backend c10d runs code that its port receives: trusted networks only.

Exit status: 0; 1 a worker failed; 2 usage; 128 + n ended by signal n."""


def launch(context: typer.Context) -> int:
    """Start a script in several processes or nodes, like torchrun."""
    from dpbench.errors import Interrupted, UsageError, no_file
    from dpbench.launch import torchrun
    from dpbench.launch.failures import RanksFailed
    from dpbench.launch.signals import handle_endings
    from dpbench.records.environment import usable_cores
    from dpbench.rendezvous.placement import endpoint_text

    try:
        chosen = torchrun.read_arguments(context.args, about=LAUNCH_HELP)
    except SystemExit:  # the help is printed
        return 0
    script = chosen.training_script
    if not (chosen.module or chosen.no_python or Path(script).exists()):
        raise UsageError(no_file(script))
    processes = int(chosen.nproc_per_node)
    cores = usable_cores()
    threads = max(cores // processes, 1)
    count = f"{processes} process{'es' if processes > 1 else ''}"
    if given := os.environ.get("OMP_NUM_THREADS"):
        say(f"{count} here, OMP_NUM_THREADS={given} as it is set")
    else:
        reason = f"{cores} cores here; set it to change this"
        say(f"{count} here, OMP_NUM_THREADS={threads} for each ({reason})")
    if not torchrun.is_one_node(chosen):
        place = endpoint_text(*torchrun.endpoint(chosen))
        say(f"waiting for the launchers of all {chosen.nnodes} nodes at {place}")
    if interface := torchrun.gloo_interface(chosen):
        say(f"gloo connects by {interface}; set GLOO_SOCKET_IFNAME to change it")
    # torch waits for other nodes in C++, where Python's handlers do not run.
    handle_endings(signal.SIG_DFL)
    try:
        torchrun.run_workers(chosen, threads)
    except RanksFailed as failed:
        lines = failed.cause.details.splitlines() if failed.cause else []
        say(f"first cause: {failed}{'; the last lines of its stderr:' if lines else ''}")
        for line in lines:
            print(f"    {line}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        say("interrupted")
        sys.stdout.flush()
        # A second signal leaves torch's threads behind, which Python would wait for. Workers die
        # with this process.
        os._exit(interrupted.exit_status)
    return 0
