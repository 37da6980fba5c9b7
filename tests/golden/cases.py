"""Command lines whose output is held word for word, by the file that has it.

They read `example`, a copy of the sweep that is shipped, and the folders that PREPARED makes.
"""

from __future__ import annotations

SHORT = "--warmup 1 --steps 4 --no-charts --quiet"
SWEEP = f"sweep {SHORT} --gpus 2 --threads 1"

PREPARED = (
    f"{SWEEP} --name base --implementations ddp,torch-ddp --backends gloo,shm --batch-sizes 16,64"
    " --repetitions 3",
    f"{SWEEP} --name settings --arch mlp --implementations ddp,local-sgd --backends gloo"
    " --batch-sizes 32 --dtypes f32,bf16 --sync-every 1,4 --accumulate 1,2 --repetitions 2",
    f"{SWEEP} --name strong --scaling strong --implementations ddp --backends gloo"
    " --batch-sizes 64 --repetitions 2",
    f"{SWEEP} --name failing --implementations dp,ddp --backends gloo,nccl --batch-sizes 8"
    " --repetitions 2 --stop-after-failure",
    "comm --backends gloo --gpus 2 --sizes 4KB,64KB --samples 5 --quiet --name collectives",
)
"""Run once, in this order, before the cases; they make the folders that cases read."""

CASES: dict[str, tuple[str, ...]] = {
    "sweep": (
        SWEEP + " --name one --implementations ddp --backends gloo --batch-sizes 32",
        "sweep --dry-run --gpus 4 --threads 1 --oversubscribe --scaling strong"
        " --batch-sizes 64 --implementations ddp,fsdp2 --backends gloo",
    ),
    "errors": (
        "sweep --batch-sizes 32,abc",
        "sweep --implementations ddp,nope",
        "sweep --arch mlp:depth=3",
        "sweep --gpus 0",
        "sweep --sync-every 2 --implementations ddp",
        "sweep --config wrong.toml",
        "sweep --model mlp",
        "sweep --name base",
        "sweep --resume --name missing",
        "report missing",
        "report results/base --columns nope",
        "compare results/base:nope=1 results/base:implementation=ddp",
        "check --against nope",
        "project example --topology nope",
        "train --epochs 0",
        "plot nope example",
        "nope",
    ),
    "report": (
        "report example --no-charts --output out",
        "report results/base --no-charts --verbose",
        "report results/failing --no-charts",
        "report results/base --no-charts --columns seed",
        "report results/base --format markdown",
        "report results/base --level rank --columns implementation,group_size,rank,samples"
        " --implementation ddp --backend shm --batch-size 16 --group-size 2",
    ),
    "published": (
        "report repository/results/published/tabtune_tabicl.csv --no-charts",
        "report repository/results/published/torch_ddp_rtx3090.csv --no-charts",
        "report repository/results/published/torch_ddp_rtx3090.csv --no-charts --columns seed",
    ),
    "explain": (
        "explain example",
        "explain results/base --verbose",
        "explain example --implementations dp --group-sizes 2 --batch-sizes 32 --verbose",
    ),
    "compare": (
        "compare example:backend=gloo example:backend=shm",
        "compare results/base results/strong",
        "compare results/settings:dtype=f32 results/settings:dtype=bf16 --within 1%",
    ),
    "check": (
        "check --quiet --gpus 2 --threads 1 --implementations ddp"
        " --against torch-ddp --backends gloo --batch-sizes 32 --warmup 1 --steps 4"
        " --repetitions 5 --name gate",
        "check results/base:backend=gloo --baseline results/base:backend=shm",
    ),
    "project": (
        "project example",
        "project results/base --group-sizes 4,8,64 --topology h100-nvswitch-ndr",
        "project repository/results/published/torch_ddp_rtx3090.csv --group-sizes 4,8,16",
    ),
    "values": (
        "report example --json --group-sizes 2 --batch-sizes 32",
        "report example --level rank --format json --implementation ddp --backend shm"
        " --group-size 2 --batch-size 32",
        "report results/collectives --format json",
        "compare example:backend=gloo example:backend=shm --json",
        "check results/base:backend=gloo --baseline results/base:backend=shm --json",
        "explain example --json --group-sizes 2 --batch-sizes 32",
        "project example --json --group-sizes 4,8",
    ),
    "others": (
        "comm --backends gloo --gpus 2 --sizes 4KB,64KB --samples 5 --quiet --name more",
        "plot speedup results/base --format svg --output charts",
        "init model.py",
    ),
}
