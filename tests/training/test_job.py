"""What does not go together is refused before a rank is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRun
from dpbench.training.job import TrainingJob
from tests.training.jobs import training_spec


@pytest.mark.parametrize(
    ("spec", "run", "message"),
    [
        ({"implementation": "single"}, {}, "single: got a group size of 2, expected 1"),
        ({"implementation": "fsdp2"}, {}, "fsdp2: it cannot train; expected one of .*ddp"),
        (
            {"implementation": "ddp-sharded", "dtype": "f16"},
            {},
            "dtype f16, whose loss scaling.*expected bf16, or ddp",
        ),
        ({"dtype": "f16"}, {}, "got the devices cpu, cpu; expected CUDA.*take bf16"),
        ({"implementation": "dp", "balance": "speed"}, {}, "balance speed: got dp.*one process"),
        (
            {"implementation": "local-sgd", "sync_every": 4},
            {"checkpoint_every": 6},
            "a checkpoint every 6 steps.*expected a multiple of 4",
        ),
        (
            {"implementation": "local-sgd", "sync_every": 4},
            {"check_sync_every": 2},
            "a comparison of the ranks every 2 steps.*expected a multiple of 4",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    spec: dict[str, Any], run: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingJob(
            spec=training_spec(**spec), run=TrainingRun(**run), folder=Path(), prepared=None
        )
