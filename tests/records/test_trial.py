from __future__ import annotations

from dpbench.codec import encode
from tests.analysis.builders import record
from tests.builders import configuration

TRIAL_ID = "fcaa0a38fb6a"
"""If this changes, results that people have stored no longer match their specifications."""


def test_a_trial_id_is_stable_and_a_field_at_its_default_does_not_change_it() -> None:
    settings = configuration()
    assert configuration(scaling="weak", sync_every=1, replicas_by_node=()) == settings
    assert "sync_every" not in encode(settings)
    assert record(settings).trial_id == TRIAL_ID
    others = [configuration(sync_every=2), configuration(replicas_by_node=(1, 1))]
    records = [record(settings, repetition=1), *map(record, others)]
    assert len({TRIAL_ID, *(one.trial_id for one in records)}) == 4
