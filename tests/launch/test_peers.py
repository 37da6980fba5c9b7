"""Trials that cannot run are refused before they start, with what to do instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.launch import peers
from dpbench.launch.machine import Machine
from dpbench.launch.peers import hook_reason, missing_package_reason, shards_reason
from dpbench.traits import IMPLEMENTATIONS
from tests.builders import WORKLOAD, trial_spec

NO_GPU = Machine(cores=2, gpus=(), cuda=None, missing_backends=())


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = replace(IMPLEMENTATIONS["fabric"], requires="no_such_package")
    monkeypatch.setitem(IMPLEMENTATIONS, "fabric", traits)
    reason = "fabric needs a package: pip install no-such-package"
    assert missing_package_reason("fabric") == reason
    assert NO_GPU.unusable_reason(trial_spec(implementation="fabric")) == reason


def test_what_needs_no_package_or_has_it_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_package_reason("ddp") is None
    monkeypatch.setattr(peers, "find_spec", lambda package: object())
    assert missing_package_reason("accelerate") is None


@pytest.mark.parametrize(
    ("implementation", "hook", "cuda", "refused"),
    [
        ("ddp", "bf16", None, False),
        ("torch-ddp", "bf16", None, True),
        ("torch-replicate", "bf16", None, True),
        ("torch-ddp", "bf16", "12.8", False),
        ("torch-ddp", "powersgd", None, False),
        ("torch-ddp", "none", None, False),
    ],
)
def test_torchs_ddp_has_the_bf16_hook_in_cuda_builds_only(
    implementation: str, hook: str, cuda: str | None, refused: bool
) -> None:
    trial = trial_spec(implementation=implementation, comm_hook=hook)
    assert (hook_reason(trial, cuda=cuda) is not None) == refused
    if cuda is None:
        assert NO_GPU.unusable_reason(trial) == hook_reason(trial, cuda=None)


def test_shards_do_not_serve_where_whole_parameters_are_needed() -> None:
    trial = trial_spec(implementation="fsdp2")
    assert shards_reason(trial) is None
    assert "noise scale" in (shards_reason(replace(trial, noise_steps=4)) or "")
    assert shards_reason(trial_spec(noise_steps=4)) is None


def test_shards_have_no_fused_sgd() -> None:
    fused = replace(WORKLOAD, optimizer="sgd-fused")
    reason = shards_reason(trial_spec(implementation="fsdp2", workload=fused))
    assert "sgd-foreach" in (reason or "")
