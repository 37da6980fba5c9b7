"""Runs a plan on two hosts: torch's elastic agent on each, and a rank under each agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpbench.codec import decode, encode
from tests.multi_node.hosts import INTERFACE, Host
from tests.multi_node.rank_program import Plan, Results

PORT = 29400
"""Of the agents; nothing else listens on a host that was made a moment ago."""


class HostFailed(Exception):
    """An agent did not end well; the text is what it and its rank wrote."""


def run_plan(hosts: Sequence[Host], plan: Plan, *, time_limit_seconds: float) -> list[Results]:
    """The results of each rank, one a host. Raises HostFailed."""
    with tempfile.TemporaryDirectory(prefix="dpbench-hosts-") as folder:
        (Path(folder) / "plan.json").write_text(json.dumps(encode(plan)))
        agents = [_start(host, len(hosts), hosts[0].address, folder) for host in hosts]
        try:
            outputs = [agent.communicate(timeout=time_limit_seconds)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.kill()  # what it started ends with its host
                agent.wait()
        if any(agent.returncode for agent in agents):
            raise HostFailed("\n".join(outputs))
        paths = [Path(folder) / f"rank{number}.json" for number in range(len(hosts))]
        return [decode(Results, json.loads(path.read_text())) for path in paths]


def _start(host: Host, nodes: int, master: str, folder: str) -> subprocess.Popen[str]:
    agent = (sys.executable, "-m", "torch.distributed.run")
    nodes_and_ranks = (f"--nnodes={nodes}", f"--node-rank={host.number}", "--nproc-per-node=1")
    meeting = (f"--master-addr={master}", f"--master-port={PORT}", f"--local-addr={host.address}")
    program = ("-m", "tests.multi_node.rank_program", f"{folder}/plan.json", folder)
    return subprocess.Popen(
        host.command(*agent, *nodes_and_ranks, *meeting, *program),
        env=os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
