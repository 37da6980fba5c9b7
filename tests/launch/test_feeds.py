"""Real ranks on the same samples, however these are loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.data.registry import prepare
from dpbench.launch.machine import inspect_machine
from dpbench.launch.trials import HostLauncher
from dpbench.records.trial import Status
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


def test_an_item_that_fails_in_a_worker_ends_the_trial_with_its_line(
    launcher: HostLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(
        "import os, torch\n"
        "class Items:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        if os.environ['RANK'] == '1': raise LookupError('no such image')\n"
        "        return torch.ones(1, 28, 28), 3\n"
        "def dataset(): return Items()\n"
    )
    workload = replace(MLP, dataset=f"{file}:dataset")
    outcome = launcher.run(trial_spec(workload=workload, prefetch=1, data_workers=1), 60)
    assert outcome.status is Status.FAILED
    assert outcome.reason is not None
    assert "rank 1 raised DataError: a data worker: taking samples raised " in outcome.reason
    assert "LookupError: no such image" in outcome.reason
    assert "theirs.py, line 5" in outcome.reason
    (log,) = launcher.logs.glob("*/rank1.stderr")
    assert "LookupError: no such image" in log.read_text()
