"""The options of `dpbench comm`."""

from __future__ import annotations

from math import ceil, log
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, TypeAdapter

from dpbench.options.model import Panel
from dpbench.options.shared import GPUS, BackendName, Measuring
from dpbench.options.types import CommaList, Count, Gpus, one_of, split_commas
from dpbench.specs.collective import COLLECTIVES

ELEMENT_BYTES = 4  # of float32
RANGE_FACTOR = 4
MAX_BYTES = 2**40
MessageSize = Annotated[ByteSize, Field(gt=0, le=MAX_BYTES, multiple_of=ELEMENT_BYTES)]


def _range(value: Any) -> Any:
    """The sizes of "4B-256MB", which holds both its ends, or of a list."""
    if not isinstance(value, str) or "-" not in value:
        return split_commas(value)
    size, largest = map(TypeAdapter(MessageSize).validate_python, value.split("-", 1))
    if size > largest:
        raise ValueError("expected smallest-largest, as in 4B-256MB")
    steps = ceil(log(largest / size, RANGE_FACTOR))
    return [*(size * RANGE_FACTOR**step for step in range(steps)), largest]


MessageSizes = Annotated[
    tuple[MessageSize, ...],
    BeforeValidator(_range),
    AfterValidator(lambda sizes: tuple(sorted({*sizes}))),
]


USUAL_SIZES = TypeAdapter(MessageSizes).validate_python("4B-256MB")


class CommOptions(Measuring):
    """Every option of `dpbench comm`; None leaves it to dpbench."""

    gpus: Gpus | None = GPUS
    collectives: Annotated[
        CommaList[Annotated[str, one_of(COLLECTIVES)]],
        BeforeValidator(lambda value: list(COLLECTIVES) if value == "all" else value),
    ] = Panel.OPTIONS.option(
        "Collectives: all_reduce, broadcast, all_gather, reduce_scatter, or all.",
        "A,B",
        default=("all_reduce",),
    )
    backends: CommaList[BackendName] | None = Panel.OPTIONS.option(
        "gloo, shm or nccl; 'dpbench list backends' has all.", "A,B", usual="all that work here"
    )
    group_sizes: CommaList[Annotated[Count, Field(ge=2)]] | None = Panel.OPTIONS.option(
        "Numbers of ranks to measure.", "N,N", usual="2, 4, 8, … up to --gpus"
    )
    sizes: MessageSizes | None = Panel.OPTIONS.option(
        "Message sizes: a range (each 4 times the previous) or a list; B, KB, MiB, ….",
        "FROM-TO|A,B",
        usual="4B-256MB, in equal parts for all ranks",
    )
    samples: Count = Panel.OPTIONS.option(
        "Timed samples per size; large messages get fewer, at least 5.", "N", default=20
    )
    charts: bool = Panel.OUTPUT.option("Draw charts.", default=True)
