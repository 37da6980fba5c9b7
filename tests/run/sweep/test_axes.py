"""Every setting of a sweep is a list, and their combinations are its variants."""

from __future__ import annotations

import pytest

from dpbench.errors import UsageError
from dpbench.run.sweep.axes import Axes
from dpbench.settings import AUTO
from dpbench.specs import Variant
from tests.cli.typed import axes_of


def parsed(implementations: tuple[str, ...] = ("ddp",), **typed: str) -> Axes:
    return axes_of(implementations, **typed)


def test_nothing_typed_is_the_defaults_and_no_variant() -> None:
    axes = parsed()
    assert axes.variants() == ()
    assert axes.base("dtype") == "f32"
    assert axes.base("accumulation_steps") == 1


def test_a_single_value_is_of_the_sweep_itself() -> None:
    axes = parsed(dtypes="bf16", bucket_cap_mb="5")
    assert axes.variants() == ()
    assert (axes.base("dtype"), axes.base("bucket_cap_mb")) == ("bf16", 5.0)


def test_several_values_are_combined() -> None:
    axes = parsed(dtypes="float32,bfloat16", compile="none,default")
    assert axes.variants() == (
        Variant(dtype="f32", compile="none"),
        Variant(dtype="f32", compile="default"),
        Variant(dtype="bf16", compile="none"),
        Variant(dtype="bf16", compile="default"),
    )


def test_what_has_no_default_is_left_to_the_machine() -> None:
    axes = parsed(steps="4,8", warmup="1,3")
    assert axes.variants() == (
        Variant(warmup_steps=1, timed_steps=4),
        Variant(warmup_steps=1, timed_steps=8),
        Variant(warmup_steps=3, timed_steps=4),
        Variant(warmup_steps=3, timed_steps=8),
    )
    assert axes.values["threads_per_replica"] == (AUTO,)


def test_auto_among_bucket_caps_is_the_implementations_own() -> None:
    axes = parsed(bucket_cap_mb="1,auto")
    assert axes.variants() == (Variant(bucket_cap_mb=1.0), Variant())
    assert axes.base("bucket_cap_mb") is None


def test_resident_among_steps_ahead_is_what_the_sweep_keeps_to() -> None:
    axes = parsed(prefetch="resident,0,2", data_workers="0,1")
    assert (axes.base("prefetch"), axes.base("data_workers")) == (None, 0)
    assert axes.variants()[:3] == (
        Variant(data_workers=0),
        Variant(data_workers=1),
        Variant(prefetch=0, data_workers=0),
    )
    assert parsed(prefetch="2").base("prefetch") == 2


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"prefetch": "residnet"}, "--prefetch"),
        ({"prefetch": "-1"}, "--prefetch"),
        ({"data_workers": "1000"}, "expected at most 256"),
        ({"dtypes": "f23"}, "--dtypes"),
        ({"compile": "defualt"}, "Did you mean 'default'"),
        ({"channels_last": "maybe"}, "--channels-last"),
        ({"accumulate": "0"}, "--accumulate"),
        ({"bucket_cap_mb": "1e7"}, "at most"),
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"comm_hook": "fp8"}, "--comm-hook"),
    ],
)
def test_an_odd_value_is_named_with_its_option(typed: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parsed(**typed)


def test_a_setting_that_no_implementation_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--sync-every 4: it is an option of local-sgd"):
        parsed(sync_every="4")
    with pytest.raises(UsageError, match=r"--comm-hook bf16: it is an option of ddp, "):
        parsed(("dp",), comm_hook="bf16")
