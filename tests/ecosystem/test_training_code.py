"""Training code of others gives the same losses with our class and backend as with torch's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.ecosystem.programs import PROGRAMS, STEPS

PROGRAM = Path(__file__).with_name("programs.py")


def losses(name: str, implementation: str, backend: str, folder: Path) -> list[str]:
    """Rank 0's losses of each step, exactly."""
    arguments = [PROGRAM, name, implementation, backend, folder]
    run = subprocess.run(
        [sys.executable, "-m", "dpbench", "launch", "--nproc-per-node", "2", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(next(line for line in run.stdout.splitlines() if line.startswith("[")))


@pytest.mark.full
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_equal_torchs_to_the_last_bit(name: str, tmp_path: Path) -> None:
    expected = losses(name, "torch-ddp", "gloo", tmp_path)
    assert len(expected) == STEPS
    for implementation, backend in (("ddp", "gloo"), ("torch-ddp", "shm"), ("ddp", "shm")):
        assert losses(name, implementation, backend, tmp_path) == expected, (
            implementation,
            backend,
        )
