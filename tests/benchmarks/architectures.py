"""Our DistributedDataParallel against torch's on every architecture that ships, two CPU ranks.

Small options, so that every kind of model has its turn on two cores within minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figure import Figure, Ratio
from tests.benchmarks.implementations import TORCHS, block_seconds, geometric_mean
from tests.benchmarks.sides import Load, two_ranks

PLAIN = tuple(
    Load(architecture=architecture, batch=batch, steps=steps, rounds=rounds)
    for architecture, batch, steps, rounds in (
        ("linear:inputs=1024,outputs=1024", 64, 10, 16),
        ("mlp", 32, 10, 16),
        ("mnist_cnn", 32, 5, 16),
        ("resnet", 8, 1, 12),
        ("vgg16:image=32,classes=10,hidden=512", 8, 1, 12),
        ("vit:image=32,patch=4,width=128,layers=4,heads=4,classes=10", 16, 1, 12),
        ("gpt", 8, 2, 12),
        ("bert", 8, 1, 12),
        ("tabular", 64, 2, 12),
        ("dlrm", 64, 1, 12),
    )
)
COMPILED = Load(architecture="gpt:layers=2", batch=8, steps=2, rounds=12, compiled=True)
"""The compiler divides it where buckets end, or nothing would overlap."""


def run() -> Iterator[Figure]:
    for load in (*PLAIN, COMPILED):
        seconds = block_seconds(two_ranks, load, ranks=2)
        best = min(TORCHS, key=lambda name: geometric_mean(seconds[name]))
        for side in ("ddp/gloo", "ddp/shm"):
            ratio = Ratio.of(seconds[best], seconds[side])
            yield Figure(
                name=f"images/s of {side} ÷ {best} ({load})",
                value=str(ratio),
                target="at least 1",
                met=ratio.high >= 1,
            )
