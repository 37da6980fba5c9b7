"""What does not go together is refused before a rank is started."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRun
from dpbench.specs.traits import IMPLEMENTATIONS, TRAINABLE
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


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_what_train_offers_is_what_it_takes(name: str) -> None:
    size = IMPLEMENTATIONS[name].largest_group or 2
    spec = training_spec(implementation=name, group_size=size)
    refused = pytest.raises(UsageError) if name not in TRAINABLE else nullcontext()
    with refused:
        TrainingJob(spec=spec, run=TrainingRun(), folder=Path(), prepared=None)


def test_what_does_go_together_is_not() -> None:
    for spec, run in (
        ({"implementation": "single", "group_size": 1}, {}),
        ({"dtype": "f16", "devices": ("cuda:0", "cuda:1")}, {}),
        ({"implementation": "local-sgd", "sync_every": 4}, {"checkpoint_every": 8}),
        ({"balance": "speed"}, {"checkpoint_every": 3, "check_sync_every": 2}),
    ):
        TrainingJob(
            spec=training_spec(**spec),
            run=TrainingRun(**run),
            folder=Path(),
            prepared=None,
        )
