"""The axes of a sweep beside implementation, backend, group size and batch size: each a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from dpbench.cli.values import comma_list, integer, known_name, positive_float, positive_int
from dpbench.errors import UsageError
from dpbench.specs import COMM_HOOKS, COMPILE_MODES, NONE_WORDS, OPTIMIZERS, Variant
from dpbench.traits import IMPLEMENTATIONS

MOST_BUCKET_MB = 1e6
"""A cap of a TB holds every gradient; torch counts it in 64-bit bytes."""
MOST_PREFETCHED, MOST_WORKERS = 1024, 256
"""More only fill the memory."""
DTYPE_NAMES = {
    **dict.fromkeys(("f32", "fp32", "float32"), "f32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("f16", "fp16", "float16"), "f16"),
    "tf32": "tf32",
}
"""By all their names."""
SWITCH = {"no": False, "yes": True}


def _one_of(names: Collection[str]) -> Callable[[str, str], str]:
    return lambda option, token: known_name(option, token, names)


def _dtype(option: str, token: str) -> str:
    return DTYPE_NAMES[known_name(option, token, DTYPE_NAMES)]


def _switch(option: str, token: str) -> bool:
    return SWITCH[known_name(option, token, SWITCH)]


def _or_none(field: str, parse: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """Also reads the word for None in that field."""
    return lambda option, token: (
        None if token.strip() == NONE_WORDS[field] else parse(option, token)
    )


def _bucket_cap(option: str, token: str) -> float:
    cap = positive_float(option, token)
    if cap > MOST_BUCKET_MB:
        raise UsageError(f"{option} {cap:g}: expected at most {MOST_BUCKET_MB:,.0f} MiB")
    return cap


def _count_to(most: int) -> Callable[[str, str], int]:
    def parse(option: str, token: str) -> int:
        count = integer(option, token, least=0)
        if count > most:
            raise UsageError(f"{option} {count}: expected at most {most:,}")
        return count

    return parse


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One of them: how it is asked for, and which field of a Variant it is."""

    option: str
    field: str
    parse: Callable[[str, str], Any]
    default: Any
    """Where the option is left out."""


AXES = {
    "optimizer": Axis(
        option="--optimizers", field="optimizer", parse=_one_of(OPTIMIZERS), default="sgd"
    ),
    "dtypes": Axis(option="--dtypes", field="dtype", parse=_dtype, default="f32"),
    "compile": Axis(
        option="--compile", field="compile", parse=_one_of(COMPILE_MODES), default="none"
    ),
    "channels_last": Axis(
        option="--channels-last", field="channels_last", parse=_switch, default=False
    ),
    "checkpoint_activations": Axis(
        option="--checkpoint-activations",
        field="checkpoint_activations",
        parse=_switch,
        default=False,
    ),
    "accumulate": Axis(
        option="--accumulate", field="accumulation_steps", parse=positive_int, default=1
    ),
    "sync_every": Axis(
        option="--sync-every",
        field="sync_every",
        parse=positive_int,
        default=1,
    ),
    "bucket_cap_mb": Axis(
        option="--bucket-cap-mb",
        field="bucket_cap_mb",
        parse=_or_none("bucket_cap_mb", _bucket_cap),
        default=None,
    ),
    "comm_hook": Axis(
        option="--comm-hook",
        field="comm_hook",
        parse=_one_of(COMM_HOOKS),
        default="none",
    ),
    "prefetch": Axis(
        option="--prefetch",
        field="prefetch",
        parse=_or_none("prefetch", _count_to(MOST_PREFETCHED)),
        default=None,
    ),
    "data_workers": Axis(
        option="--data-workers", field="data_workers", parse=_count_to(MOST_WORKERS), default=0
    ),
}
"""By the name of the command's parameter."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The values along each axis, by the field of a Variant."""

    values: Mapping[str, tuple[Any, ...]]

    def base(self, field: str) -> Any:
        """What the sweep itself says: the only value, or the first of several; but None where one
        of several may be None, see NONE_WORDS."""
        values = self.values[field]
        return None if field in NONE_WORDS and len(values) > 1 else values[0]

    def variants(self) -> tuple[Variant, ...]:
        """Every combination along the axes of several values; () if there is none."""
        several = {field: values for field, values in self.values.items() if len(values) > 1}
        if not several:
            return ()
        return tuple(
            Variant(**dict(zip(several, combination, strict=True)))
            for combination in product(*several.values())
        )


def parse_axes(
    typed: Mapping[str, str | None], implementations: Collection[str], notes: list[str]
) -> Axes:
    """The axes of the parameters `typed`; None is an option that was left out.

    Raises UsageError, also for a setting that none of the implementations has.
    """
    values = {}
    for parameter, axis in AXES.items():
        text = typed[parameter]
        if text is None:
            values[axis.field] = (axis.default,)
            continue
        values[axis.field] = comma_list(axis.option, text, axis.parse, notes)
        _check_is_of_any(axis, text, implementations)
    return Axes(values)


def _check_is_of_any(axis: Axis, text: str, implementations: Collection[str]) -> None:
    having = [name for name, traits in IMPLEMENTATIONS.items() if traits.has_setting(axis.field)]
    if {*having} & {*implementations}:
        return
    remedy = having[0] if len(having) == 1 else "one of them"
    raise UsageError(
        f"{axis.option} {text}: it is an option of {', '.join(having)}, but --implementations are "
        f"{', '.join(implementations)}; add {remedy}, or leave {axis.option} out"
    )
