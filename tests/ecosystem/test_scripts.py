"""Unchanged scripts of other libraries as the workload."""

from pathlib import Path

import pytest

from dpbench.launch.trial_runner import TrialRunner
from dpbench.records.trial import Status, TrialRecord
from tests.builders import MACHINE, script_configuration

pytestmark = pytest.mark.full
SCRIPTS = Path(__file__).with_name("scripts")
MICRO_STEPS = {"accelerated": 2, "lightning_module": 1, "timm_classifier": 1, "trainer": 2}
"""Micro-steps of each script in an optimizer step; only the last of them averages gradients."""


def run(folder: Path, implementation: str, name: str, *arguments: str) -> TrialRecord:
    size = 1 if implementation == "single" else 2
    script = SCRIPTS / f"{name}.py"
    settings = {"implementation": implementation, "group_size": size}
    configuration = script_configuration(script, *arguments, **settings)
    return TrialRunner(MACHINE, folder / "logs").run(configuration, 0, 300.0)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "micro_steps"), MICRO_STEPS.items())
def test_it_is_measured_alone_as_copies_and_together(
    name: str, micro_steps: int, tmp_path: Path
) -> None:
    for implementation in ("single", "independent", "script"):
        outcome = run(tmp_path, implementation, name)
        assert outcome.status is Status.COMPLETED, outcome.reason
        for rank in outcome.ranks:
            assert rank.timed.samples == 4 * micro_steps * len(rank.timed.step_seconds)
    for rank in outcome.ranks:
        assert [*rank.windows] == ["timed", "unsynced", "cached"]
        assert rank.script is not None
        assert rank.script.reducing_forwards == rank.script.steps
        assert rank.script.differing_parameter is None


def test_a_fixed_number_of_devices_is_measured_together_only(tmp_path: Path) -> None:
    alone = run(tmp_path, "single", "lightning_module", "2")
    assert "You set `devices=2`" in (alone.reason or "")
    assert run(tmp_path, "script", "lightning_module", "2").status is Status.COMPLETED
