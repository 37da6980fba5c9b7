"""Training code of others gives the same losses with our class and backend as with torch's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpbench.parallel import DataParallel
from tests.cli.command import environment
from tests.ecosystem.losses import COUNT
from tests.ecosystem.scripts import torchvision_operators as torchvision_operators

pytestmark = pytest.mark.full
FOLDER = Path(__file__).parent
SCRIPTS = ("accelerated", "lightning_module", "timm_classifier", "trainer", "trainer static")


def losses(implementation: str, backend: str, script: str, folder: Path) -> list[str]:
    """Rank 0's losses, exactly."""
    name, *arguments = script.split()
    words = [implementation, backend, FOLDER / "scripts" / f"{name}.py", *arguments]
    launch = [sys.executable, "-m", "dpbench", "launch", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*launch, FOLDER / "losses.py", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(next(line for line in run.stdout.splitlines() if line.startswith("[")))


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("script", SCRIPTS)
def test_losses_equal_torchs_to_the_last_bit(script: str, tmp_path: Path) -> None:
    expected = losses("torch-ddp", "gloo", script, tmp_path)
    assert len({*expected}) > COUNT / 2
    for side in (("ddp", "gloo"), ("torch-ddp", "shm"), ("ddp", "shm")):
        assert losses(*side, script, tmp_path) == expected, side


@pytest.mark.parametrize("replicas", [1, 2])
def test_data_parallel_gathers_the_outputs_of_a_transformers_model(replicas: int) -> None:
    """The loss, the logits and the cache of keys and values are those of the plain model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    alone, copied = (GPT2LMHeadModel(config).eval() for _ in range(2))
    copied.load_state_dict(alone.state_dict())
    tokens = torch.randint(0, 64, (4, 16))
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
