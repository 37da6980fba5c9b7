"""Real ranks on the same samples, however these are loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.data.registry import prepare
from dpbench.launch.machine import inspect_machine
from dpbench.launch.trials import HostLauncher
from tests.builders import WORKLOAD, trial_spec

MLP = replace(WORKLOAD, architecture="mlp:width=16")
SETTINGS = (
    {},
    {"prefetch": 0},
    {"prefetch": 2},
    {"prefetch": 2, "data_workers": 1},
)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> HostLauncher:
    folder = tmp_path_factory.mktemp("feeds")
    prepared = prepare("digits", data_dir=None, cache=folder)
    return HostLauncher(inspect_machine(), prepared.folder, folder / "logs")


def test_losses_are_equal_to_the_bit_however_samples_are_loaded(launcher: HostLauncher) -> None:
    """Through all windows, with gradient accumulation."""
    found = []
    for settings in SETTINGS:
        trial = trial_spec(workload=MLP, accumulation_steps=2, phase_steps=1, **settings)
        outcome = launcher.run(trial, 60)
        assert outcome.reason is None
        assert outcome.verification is not None
        assert outcome.verification.passed
        found.append(
            [
                (
                    rank.sample_checksum,
                    rank.timed.losses,
                    rank.without_sync and rank.without_sync.losses,
                    rank.final_checksum,
                )
                for rank in outcome.ranks
            ]
        )
    assert len(found[0]) == 2
    assert found[1:] == found[:1] * 3
