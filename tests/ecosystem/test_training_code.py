"""Training code of others gives the same losses with our class and backend as with torch's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpbench.parallel import DataParallel
from tests.cli.command import environment
from tests.ecosystem.programs import PROGRAMS, STEPS, Sentences, small_gpt2

pytestmark = pytest.mark.full
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


@pytest.mark.parametrize("replicas", [1, 2])
def test_data_parallel_gathers_the_outputs_of_a_transformers_model(replicas: int) -> None:
    """The loss, the logits and the cache of keys and values are those of the plain model."""
    alone = small_gpt2().eval()
    copied = small_gpt2().eval()
    copied.load_state_dict(alone.state_dict())
    tokens = torch.stack([Sentences()[index]["input_ids"] for index in range(4)])
    expected = alone(input_ids=tokens, labels=tokens)
    output = DataParallel(copied, ["cpu"] * replicas)(input_ids=tokens, labels=tokens)
    assert type(output) is type(expected)
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.logits, expected.logits)
    for layers in zip(output.cache, expected.cache, strict=True):
        torch.testing.assert_close(layers[0][:2], layers[1][:2])
    output.loss.backward()
    expected.loss.backward()
    for ours, theirs in zip(copied.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
