from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.launch.findings import MachineFinding, findings
from dpbench.launch.host import GpuUse
from dpbench.launch.readings import Readings
from tests.launch.readings import BUSY, FULL_SPEED, IDLE, QUIET, UNKNOWN


def by_kind(readings: Readings) -> dict[str, MachineFinding]:
    found = findings(readings)
    assert len({finding.kind for finding in found}) == len(found)
    return {finding.kind: finding for finding in found}


def test_a_quiet_machine_gets_no_warning_and_no_advice() -> None:
    assert {finding.verdict for finding in findings(QUIET)} == {"ok"}
    assert {finding.advice for finding in findings(QUIET)} == {None}


@pytest.mark.parametrize(
    ("kind", "change", "value"),
    [
        ("load", {"load": BUSY}, 38.0),
        ("stolen", {"load": replace(IDLE, stolen_share=0.02)}, 2.0),
        ("clock", {"loop_p99_seconds": 0.006}, 1.5),
        ("harness", {"harness": replace(QUIET.harness, cpu_share=0.9)}, 90.0),
        ("governor", {"governors": ("performance", "powersave", "powersave")}, 2),
        ("frequency", {"frequency": replace(FULL_SPEED, highest=1.7e9)}, 50.0),
        ("boost", {"boost": True}, 1.0),
        ("throttling", {"throttle_events": 3}, 3),
        ("quota", {"quota_cores": 1.5}, 2.5),
        ("smt", {"physical_cores": 2}, 2),
        ("threads", {"omp_threads": "2", "gpus": 0}, 8),
        ("threads", {"omp_threads": "4,2", "gpus": 2}, 8),
        ("swap", {"swapped_bytes": 2**30}, 2**30),
        ("gpu users", {"gpu_use": GpuUse(processes=("a", "b"), busiest_percent=0.0)}, 2),
        ("gpu load", {"gpu_use": GpuUse(processes=(), busiest_percent=40.0)}, 40.0),
    ],
)
def test_each_disturbance_is_one_warning_with_its_number(
    kind: str, change: dict[str, object], value: float
) -> None:
    found = by_kind(replace(QUIET, **change))  # type: ignore[arg-type]
    assert [name for name, f in found.items() if f.verdict == "warning"] == [kind]
    assert found[kind].value == pytest.approx(value)
    assert found[kind].advice


def test_what_is_not_readable_is_said_so_and_never_called_good() -> None:
    found = by_kind(UNKNOWN)
    verdicts = {kind: finding.verdict for kind, finding in found.items()}
    assert verdicts.pop("clock") == "ok"  # the only one that needs nobody's answer
    assert set(verdicts.values()) == {"not readable"}
    assert {finding.advice for finding in found.values()} == {None}
    told = {"harness": "not measured, the trial failed: rank 1 raised x"}
    for kind in verdicts:
        assert told.get(kind, "not readable") in found[kind].text


def test_a_machine_without_gpus_is_not_asked_for_their_users() -> None:
    assert not {"gpu users", "gpu load"} & set(by_kind(replace(QUIET, gpus=0, gpu_use=None)))


def test_the_process_that_disturbs_most_is_named() -> None:
    assert by_kind(replace(QUIET, load=BUSY))["load"].text == (
        "others keep 38 % of 4 usable cores busy over 1 s (limit 5 %), most: python (pid 412) "
        "31 %; load average of the last minute 0.1"
    )


def test_a_quota_above_the_cores_limits_nothing() -> None:
    quota = by_kind(replace(QUIET, quota_cores=8.0))["quota"]
    assert (quota.value, quota.text) == (0, "the cgroup allows 4 of 4 usable cores")
