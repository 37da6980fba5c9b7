"""The declared fields: each key once a level, defined in one sentence, in its old place."""

from __future__ import annotations

import pytest

from dpbench.analysis.fields.levels import COLUMNS, LEVELS, SWEEP_FIELDS, keys_of

DEFINED = {
    (level, field.key): field.meaning for level, fields in LEVELS.items() for field in fields
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_has_each_key_once(level: str) -> None:
    assert len(set(keys_of(level))) == len(keys_of(level))


@pytest.mark.parametrize("place", DEFINED)
def test_a_definition_is_one_sentence(place: tuple[str, str]) -> None:
    meaning = DEFINED[place]
    assert meaning.endswith(".")
    assert ". " not in meaning.replace("et al., ", "")


def test_configurations_and_trials_give_a_key_the_same_meaning() -> None:
    """But for the one key that published times and trials both have."""
    shared = {*keys_of("configuration")} & {*keys_of("trial")} - {"duration_seconds"}
    assert {DEFINED["configuration", key] for key in shared} == {
        DEFINED["trial", key] for key in shared
    }


def test_columns_are_fields_of_configurations() -> None:
    assert {*COLUMNS} <= {*keys_of("configuration")}


def test_an_estimate_over_repetitions_has_an_attribute_of_the_summary() -> None:
    from dpbench.analysis.configuration import ConfigurationSummary

    estimated = {field.key for field in SWEEP_FIELDS if field.over}
    assert estimated <= {*ConfigurationSummary.__slots__}
    assert estimated


def test_keys_keep_the_places_that_files_of_old_versions_gave_them() -> None:
    configuration, trial = keys_of("configuration"), keys_of("trial")
    assert configuration[:8] == (
        *("implementation", "backend", "group_size", "batch_size", "global_batch_size"),
        *("images_per_second", "images_per_second_low", "images_per_second_high"),
    )
    assert configuration[-26:-24] == ("nodes", "optimizer")
    assert configuration[-2:] == ("warmup_steps", "threads_per_replica")
    assert trial[-6:-4] == ("flops_per_item", "allocator")
