"""The settings of a trial that a sweep can compare, as tidy values."""

from __future__ import annotations

from dpbench.analysis.fields import ReadField, boolean, integer, number, text
from dpbench.data.identity import DIGITS
from dpbench.specs import COMM_HOOKS, COMPILE_MODES, DTYPES, OPTIMIZERS, TrialSpec

SETTINGS: tuple[ReadField[TrialSpec], ...] = (
    text(
        "optimizer",
        "The optimizer; behind the dash its kernels, where they were chosen.",
        lambda t: t.workload.optimizer,
        choices=OPTIMIZERS,
    ),
    integer(
        "accumulation_steps",
        "Micro-steps behind one optimizer step.",
        lambda t: t.accumulation_steps,
    ),
    text(
        "dtype",
        "Numbers of the products in forward and backward; parameters and gradients stay float32.",
        lambda t: t.workload.dtype,
        choices=tuple(DTYPES),
    ),
    text("compile", "Mode of torch.compile.", lambda t: t.workload.compile, choices=COMPILE_MODES),
    boolean(
        "channels_last",
        "Whether images lie in memory pixel by pixel.",
        lambda t: t.workload.channels_last,
    ),
    boolean(
        "checkpoint_activations",
        "Whether blocks are computed again in the backward pass.",
        lambda t: t.workload.checkpoint_activations,
    ),
    integer(
        "sync_every",
        "Optimizer steps between two averages of parameters, of local-sgd.",
        lambda t: t.sync_every,
    ),
    number(
        "bucket_cap_mb",
        "MiB of gradients in one collective; missing where the implementation chose.",
        lambda t: t.bucket_cap_mb,
    ),
    text(
        "comm_hook",
        "What buckets of gradients go through on their way.",
        lambda t: t.comm_hook,
        choices=COMM_HOOKS,
    ),
    integer(
        "prefetch",
        "Steps whose samples are loaded ahead from host memory, or batches for each worker; "
        "missing where all lie on the device.",
        lambda t: t.prefetch,
    ),
    integer(
        "data_workers",
        "Processes of each rank that take samples one by one.",
        lambda t: t.data_workers,
    ),
    text(
        "step",
        "The user's own training step; missing where it is dpbench's.",
        lambda t: t.workload.step,
    ),
    text(
        "files",
        f"First {DIGITS} digits of the SHA-256 of the user's own files; missing without any.",
        lambda t: t.workload.files_sha256 and t.workload.files_sha256[:DIGITS],
    ),
)
