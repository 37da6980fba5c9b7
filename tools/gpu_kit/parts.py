"""What `make gpu` runs, part by part; with `rehearse`, the same on the CPU and small."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpbench.specs.traits import BUILT_IN
from tools.gpu_kit.part import Part

ARCHITECTURES = (
    *("linear", "mlp", "mnist_cnn", "resnet", "gpt", "bert", "vit:image=32,patch=8"),
    *("tabular", "dlrm"),
)
"""All but vgg16, whose proof in float64 takes longer than a part may."""
LARGE = {
    "resnet": "resnet:depth=50,image=224",
    "gpt": "gpt:size=gpt2",
    "bert": "bert:size=base",
    "vit": "vit",
}
PROOF = (*("--warmup", "1", "--steps", "2", "--repetitions", "1"),)
SLICES = (
    ("tests/test_on_a_gpu.py",),
    ("tests/parallel/shm",),
    ("tests/data", "tests/rendezvous", "tests/training"),
)
"""Folders whose tests marked `gpu` run together, three minutes at most."""
ON_TWO_GPUS = ("tests/test_on_two_gpus.py", "tests/launch/test_manual_launch.py")
"""Tests of which a variant runs on two GPUs; in a rehearsal, the variant on the CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the parts run, and what stands there for nccl, precisions and large models."""

    folder: str
    rehearse: bool

    @property
    def nccl(self) -> str:
        return "gloo" if self.rehearse else "nccl"

    @property
    def batch(self) -> str:
        return "4" if self.rehearse else "32"

    @property
    def dtypes(self) -> str:
        return "f32,bf16" if self.rehearse else "f32,tf32,bf16,f16"

    @property
    def compiled(self) -> str:
        return "none,default" if self.rehearse else "none,default,reduce-overhead"


def parts(place: Place) -> list[Part]:
    """All parts in the order in which they run: what tells most for its time comes first."""
    return [
        *_machine(place),
        *_proofs(place),
        *_tests(place),
        *_overhead(place),
        *_collectives(place),
        *_replicas(place),
        *(replace(part, gpus=2) for part in _on_two_gpus(place)),
        *(replace(part, gpus=4) for part in _on_four_gpus(place)),
        *_sweeps(place),
    ]


def _dpbench(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "dpbench", *words)


def _sweep(place: Place, name: str, *words: str, limit: float, rows: tuple[str, ...] = ()) -> Part:
    return Part(
        name=name,
        command=_dpbench(
            *("sweep", "--results-dir", place.folder, "--name", name),
            *("--quiet", "--no-charts", "--time-limit", f"{limit / 2:.0f}s", *words),
        ),
        limit_seconds=limit,
        results=name,
        rows=rows,
    )


def _machine(place: Place) -> Iterator[Part]:
    yield Part(name="machine-doctor", command=_dpbench("doctor"), limit_seconds=90, rows=("TD-2",))
    yield Part(name="machine-list", command=_dpbench("list"), limit_seconds=90)


def _proofs(place: Place) -> Iterator[Part]:
    """The gradients of everything against one process; a sweep counts no speed without it."""
    everything = ",".join(name for name in BUILT_IN if name not in ("dp", "torch-dp"))
    shared = ("--gpus", "2", "--group-sizes", "2", "--oversubscribe")
    yield _sweep(
        place,
        "proof-nccl",
        *("--implementations", everything, "--backends", place.nccl, "--gpus", "1"),
        *("--arch", "mlp", "--batch-sizes", "8", *PROOF),
        limit=240,
        rows=("OX-9",),
    )
    for backend in ("gloo", "shm"):
        yield _sweep(
            place,
            f"proof-{backend}",
            *("--implementations", everything, "--backends", backend, *shared),
            *("--arch", "mlp", "--batch-sizes", "8", *PROOF),
            limit=240,
            rows=("OX-8", "TD-82"),
        )
    for arch in ARCHITECTURES:
        yield _sweep(
            place,
            f"proof-arch-{arch.split(':')[0]}",
            *("--implementations", "ddp", "--backends", "gloo,shm", *shared),
            *("--arch", arch, "--batch-sizes", "2", *PROOF),
            limit=150,
        )
    yield _sweep(
        place,
        "proof-dtypes",
        *("--implementations", "ddp,torch-ddp", "--backends", place.nccl, "--gpus", "1"),
        *("--arch", "mnist_cnn", "--batch-sizes", "8", "--dtypes", place.dtypes, *PROOF),
        limit=180,
        rows=("TT-40",),
    )
    yield _sweep(
        place,
        "proof-compile",
        *("--implementations", "ddp,torch-ddp", "--backends", f"{place.nccl},shm", "--gpus", "1"),
        *("--arch", "mlp", "--batch-sizes", "8", "--compile", place.compiled, *PROOF),
        limit=280,
    )


def _tests(place: Place) -> Iterator[Part]:
    for number, folders in enumerate(SLICES, start=1):
        yield Part(
            name=f"tests-{number}",
            command=(
                *(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"),
                *folders,
            ),
            limit_seconds=180,
            rows=("DL-15", "DL-26", "DL-31", "DL-33", "TD-23") if number == 1 else (),
        )


def _on_two_gpus(place: Place) -> Iterator[Part]:
    """The collectives of separate GPUs, copies between them, and how they are chosen."""
    few = ("--arch", "mlp", *PROOF) if place.rehearse else ()
    backends = ("--backends", "gloo,nccl", "--gpus", "2")
    yield _sweep(place, "several-card", *backends, "--batch-sizes", "32,64", *few, limit=400)
    yield _checked(place, "several-card", "cpu" if place.rehearse else "cuda:0,cuda:1", "OX-20")
    yield _sweep(
        place,
        "several-table",
        *("--implementations", "ddp", *backends, *few),
        *("--batch-sizes", "4,8" if place.rehearse else "32,64,128,256"),
        limit=400,
        rows=("TD-84",),
    )
    table = _dpbench("report", f"{place.folder}/several-table", "--columns", "seed")
    yield Part(name="several-table-report", command=table, limit_seconds=60)
    marked = () if place.rehearse else ("-m", "gpu")
    yield Part(
        name="several-tests",
        command=(sys.executable, "-m", "pytest", "-q", *marked, *ON_TWO_GPUS),
        limit_seconds=180,
        rows=("DL-4", "DL-15", "DL-26", "TT-10"),
    )
    yield Part(
        name="several-f16",
        command=_dpbench(
            *("train", "--arch", "mlp", "--gpus", "2", "--max-steps", "20", "--max-norm", "1"),
            *("--dtype", "bf16" if place.rehearse else "f16", "--check-sync-every", "1"),
            *("--runs-dir", f"{place.folder}/runs"),
        ),
        limit_seconds=120,
        rows=("TT-16",),
    )
    one = _sweep(place, "several-visible", *_one_row("1"), limit=120)
    yield replace(one, command=("env", "CUDA_VISIBLE_DEVICES=1", *one.command))
    check = _checked(place, "several-visible", "cpu" if place.rehearse else "cuda:0", "OX-15")
    yield replace(check, command=("env", "CUDA_VISIBLE_DEVICES=1", *check.command))


def _on_four_gpus(place: Place) -> Iterator[Part]:
    yield _sweep(place, "several-ids", *_one_row("0,1" if place.rehearse else "2,3"), limit=120)
    yield _checked(place, "several-ids", "cpu" if place.rehearse else "cuda:2,cuda:3", "OX-14")
    four = ("--group-sizes", "4", "--oversubscribe", "--backends", "gloo")
    yield _sweep(place, "several-gloo", *_one_row("4"), *four, limit=120)
    devices = "cpu" if place.rehearse else "cuda:0,cuda:1,cuda:2,cuda:3"
    yield _checked(place, "several-gloo", devices, "OX-16")


def _one_row(gpus: str) -> tuple[str, ...]:
    return (
        "--implementations",
        "ddp",
        "--gpus",
        gpus,
        "--arch",
        "mlp",
        "--batch-sizes",
        "8",
        *PROOF,
    )


def _checked(place: Place, name: str, devices: str, row: str) -> Part:
    return Part(
        name=f"{name}-checked",
        command=(sys.executable, "-m", "tools.gpu_kit.several", f"{place.folder}/{name}", devices),
        limit_seconds=60,
        rows=(row,),
    )


def _overhead(place: Place) -> Iterator[Part]:
    """What a wrapper costs where there is nobody to talk to: against the plain module."""
    steps = ("--steps", "20") if place.rehearse else ("--repetitions", "12")
    for arch in ("mlp", "gpt:layers=1,width=64,heads=2" if place.rehearse else "gpt"):
        name = f"overhead-{arch.split(':')[0]}"
        yield _sweep(
            place,
            name,
            *("--implementations", "single,ddp,torch-ddp", "--backends", place.nccl),
            *("--gpus", "1", "--arch", arch, "--batch-sizes", place.batch, *steps),
            limit=260,
        )
        yield Part(
            name=f"{name}-ratios",
            command=(sys.executable, "-m", "tools.gpu_kit.ratios", f"{place.folder}/{name}"),
            limit_seconds=60,
        )


def _collectives(place: Place) -> Iterator[Part]:
    """Of two ranks that share a GPU, which nccl refuses."""
    sizes = "4KB-1MB" if place.rehearse else "4KB-64MB"
    for backend in ("gloo", "shm"):
        yield Part(
            name=f"comm-{backend}",
            command=_dpbench(
                *("comm", "--results-dir", place.folder, "--name", f"comm-{backend}"),
                *("--backends", backend, "--gpus", "2", "--group-sizes", "2"),
                *("--oversubscribe", "--sizes", sizes, "--repetitions", "2", "--samples", "10"),
                *("--quiet", "--no-charts"),
            ),
            limit_seconds=150,
        )


def _replicas(place: Place) -> Iterator[Part]:
    """One process that drives its replicas: ours, and torch's, which takes GPUs only."""
    yield _sweep(
        place,
        "replicas-dp",
        *("--implementations", "dp" if place.rehearse else "dp,torch-dp", "--gpus", "1"),
        *("--arch", "mlp" if place.rehearse else "mnist_cnn", "--batch-sizes", place.batch),
        *("--steps", "20", "--repetitions", "2"),
        limit=150,
    )


def _sweeps(place: Place) -> Iterator[Part]:
    """Models of the sizes that people train: speed, MFU, energy, phases, and why."""
    for name, arch in LARGE.items():
        sweep = f"sweep-{name}"
        yield _sweep(
            place,
            sweep,
            *("--implementations", "single,ddp,torch-ddp", "--backends", place.nccl),
            *("--gpus", "1", "--arch", "mlp" if place.rehearse else arch),
            *("--batch-sizes", "8" if place.rehearse else "16,max"),
            *("--dtypes", "f32" if place.rehearse else "bf16"),
            *("--steps", "10", "--warmup", "5", "--repetitions", "2"),
            limit=280,
        )
        yield Part(
            name=f"{sweep}-explained",
            command=_dpbench("explain", f"{place.folder}/{sweep}"),
            limit_seconds=60,
        )
        yield Part(
            name=f"{sweep}-recorded",
            command=(sys.executable, "-m", "tools.gpu_kit.recorded", f"{place.folder}/{sweep}"),
            limit_seconds=60,
        )
