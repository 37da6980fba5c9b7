"""Error messages for a backward that did not do what the reducer was told to expect.

The first sentences are those of torch's DistributedDataParallel, by which people search for help.
"""

from __future__ import annotations

from collections.abc import Sequence

UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. "
    "This error indicates that your "
)
UNUSED = (
    "module has parameters that were not used in producing loss, or that a backward failed. You "
    "can allow the former by passing the keyword argument `find_unused_parameters=True` to "
    "`DistributedDataParallel`, and avoid it by making sure that all parameters take part in the "
    "outputs and all `forward` function outputs participate in calculating loss. To see the "
    "collectives of each rank, set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO "
    "or DETAIL."
)
CHANGED = (
    "training graph has changed in this iteration, e.g., one parameter is used in first "
    "iteration, but then got unused in the second iteration. this is not compatible with "
    "static_graph set to True."
)


def unfinished(names: Sequence[str], missing: Sequence[int], rank: int, *, static: bool) -> str:
    """The message on the rank whose parameters at the indices `missing` got no gradient."""
    return (
        f"{UNFINISHED}{CHANGED if static else UNUSED}\n"
        f"Parameter indices which did not receive grad for rank {rank}: "
        f"{' '.join(map(str, missing))}\n"
        f"Parameters which did not receive grad for rank {rank}: {_listed(names, missing)}"
    )


def unfinished_elsewhere(names: Sequence[str], missing: Sequence[int], *, static: bool) -> str:
    """The message on the ranks that did finish, when another could not."""
    return (
        f"{UNFINISHED}{CHANGED if static else UNUSED}\n"
        f"Parameters which did not receive grad on another rank: {_listed(names, missing)}"
    )


def fired_too_often(
    names: Sequence[str], index: int, missing: Sequence[int], *, static: bool
) -> str:
    """The message for a parameter whose gradient is accumulated more often in one backward than
    expected, while those at the indices `missing` have not got one."""
    if static:
        return (
            "Your training graph has changed in this iteration, e.g., one parameter is unused in "
            "first iteration, but then got used in the second iteration. this is not compatible "
            f"with static_graph set to True. It is parameter {names[index]} at index {index}."
        )
    return (
        "Expected to mark a variable ready only once. This error is caused by a backward nested "
        "in another, such as a reentrant checkpoint of a layer that is used twice; checkpoint "
        "with use_reentrant=False, or set static_graph=True if the graph is always the same. "
        f"Parameter at index {index} with name {names[index]} has been marked as ready twice."
        + (
            " Or did the backward before this one leave out parameters? These have got no "
            f"gradient: {_listed(names, missing)}."
            if missing
            else ""
        )
    )


def too_late(names: Sequence[str], index: int) -> str:
    """The message for a parameter that gets a gradient after the reduction of its forward."""
    return (
        f"parameter {names[index]!r} got a gradient after the reduction of the last forward had "
        "counted it as unused, so that nothing averages it. Call backward once for each forward, "
        "on the sum of the losses; or make the other forwards under no_sync()."
    )


def _listed(names: Sequence[str], indices: Sequence[int]) -> str:
    return ", ".join(names[index] for index in indices)
