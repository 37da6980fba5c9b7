"""Results of several hosts: what runs across them is named, compared and explained as such."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.frames import row_frame
from dpbench.analysis.resources import peak_items_per_second
from dpbench.analysis.rows import summarize
from dpbench.analysis.sentences import environment_warnings, machine_notes
from dpbench.errors import NotComparable
from dpbench.records.environment import environment_line
from dpbench.records.trial import TrialRecord
from dpbench.report.configurations import rows_text
from tests.analysis.builders import H100, compare_speeds, machine, run, runs, side, trial

FIRST = machine()
SECOND = replace(FIRST, hostname="other")
ENVIRONMENTS = {one.environment_id: one for one in (FIRST, SECOND)}
IDS = tuple(ENVIRONMENTS)


ON_TWO = run(trial(group_size=2, replicas_by_node=(1, 1)), 150.0, environment_ids=IDS)


def on_one(group_size: int = 1) -> TrialRecord:
    return run(trial(group_size=group_size), 100.0, environment_ids=IDS[:1])


def test_a_group_across_hosts_scales_from_one_replica_on_the_first() -> None:
    _, row = summarize([on_one(), ON_TWO], environments=ENVIRONMENTS)
    assert row.label == "ddp/gloo ×2 (1+1 nodes), batch 32"
    assert row.speedup is not None
    assert (row.speedup.value, row.notes) == (pytest.approx(1.5), ())
    assert "  2 (1+1)  " in rows_text([row])
    assert row_frame([row])["nodes"].item() == "1+1"


def test_two_on_a_host_and_one_on_each_of_two_are_no_repetitions_of_each_other() -> None:
    one, other = summarize([on_one(2), ON_TWO])
    assert one.label != other.label
    together = side("a", runs(trial(group_size=2), [100.0]))
    across = side("b", runs(trial(group_size=2, replicas_by_node=(1, 1)), [90.0]))
    with pytest.raises(NotComparable, match="they differ in nodes: one -> 1"):
        compare_speeds(together, across)
    chosen = (replace(together, where={"nodes": "one"}), replace(across, where={"nodes": "1+1"}))
    (row,) = compare_speeds(*chosen).rows["images_per_second"]
    assert row.label == "ddp/gloo ×2, batch 32"


def test_hosts_that_are_alike_need_no_note_and_others_are_told() -> None:
    assert not [*environment_warnings([on_one(), ON_TWO], ENVIRONMENTS)]
    slower = replace(SECOND, cpu="slower")
    record = replace(ON_TWO, environment_ids=(IDS[0], slower.environment_id))
    (note,) = environment_warnings(
        [on_one(), record], {IDS[0]: FIRST, slower.environment_id: slower}
    )
    assert note == "trials ran in 2 environments: cpu: 'Some CPU' -> 'slower'"
    assert environment_line(ENVIRONMENTS, {*IDS}) == "2 hosts, each Some CPU, 2 cores"


def test_cores_and_gpus_are_those_of_each_host() -> None:
    wide = run(trial(group_size=4, replicas_by_node=(2, 2)), 100.0, environment_ids=IDS[:1])
    assert not [*environment_warnings([wide], ENVIRONMENTS)]
    gpus = machine(H100)
    spec = trial(group_size=2, replicas_by_node=(1, 1), devices=("cuda:0", "cuda:0"))
    peak, _ = peak_items_per_second(spec, 6.7e10, [gpus, gpus])
    assert peak == pytest.approx(2000)
    unlike = {"a": gpus, "b": machine("Slow GPU")}
    record = run(spec, 100.0, unsynced=0.1, environment_ids=("a", "b"))
    (hint,) = machine_notes(summarize([record]), unlike)
    assert f"its GPUs differ ({H100}, Slow GPU)" in hint
    assert "on cuda:0 on node" in hint
