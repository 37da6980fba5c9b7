"""Command lines whose output is held word for word, by the file that has it."""

from __future__ import annotations

SHORT = "--warmup 1 --steps 4 --no-charts --quiet"
SWEEP = f"sweep {SHORT} --gpus 2 --threads 1"

PREPARED = (
    f"{SWEEP} --name base --implementations ddp,torch-ddp --backends gloo,shm --batch-sizes 16,64"
    " --repetitions 3",
    f"{SWEEP} --name settings --arch mlp --implementations ddp,local-sgd --backends gloo"
    " --batch-sizes 32 --dtypes f32,bf16 --sync-every 1,4 --accumulate 1,2 --repetitions 2",
    f"{SWEEP} --name strong --scaling strong --implementations ddp --backends gloo"
    " --batch-sizes 64 --repetitions 2 --optimizers sgd,adamw --lr-scaling linear",
    f"{SWEEP} --name failing --implementations dp,ddp --backends gloo,nccl --batch-sizes 8"
    " --repetitions 2 --stop-after-failure",
    "comm --backends gloo,shm --gpus 2 --sizes 4KB,1MB --samples 5 --name base --quiet",
)
"""Run once, in this order, before the cases; they make the folders that cases read."""

CASES: dict[str, tuple[str, ...]] = {
    "sweep": (
        SWEEP + " --name one --implementations ddp --backends gloo --batch-sizes 32",
        SWEEP + " --name two --implementations ddp --backends gloo --batch-sizes 32 --json",
        "sweep --dry-run --gpus 2 --threads 1",
        "sweep --dry-run --gpus 4 --threads 1 --oversubscribe --scaling strong"
        " --batch-sizes 64 --implementations ddp,fsdp2 --backends gloo",
        "sweep --dry-run --gpus 2 --threads 1 --arch gpt --dtypes f32,bf16"
        " --compile none,default --implementations ddp",
        "sweep --dry-run --gpus 2 --threads 1 --implementations ddp"
        " --batch-sizes 16,32 --exclude 'group_size=2 batch_size=32'",
        SWEEP + " --name amounts --implementations ddp --backends gloo --batch-sizes 32"
        " --warmup 1,3 --steps 4,8 --repetitions 2 --exclude 'warmup_steps=3 timed_steps=8'",
        "sweep --dry-run --gpus 2 --oversubscribe --implementations ddp"
        " --batch-sizes 16 --warmup 5,20 --steps 20,100 --threads 1,2",
        "sweep --show-config",
        "sweep --show-config --preset quick --batch-sizes 8 --backends shm",
        "sweep --show-config --config options.toml --lr 0.5",
    ),
    "sweep_errors": (
        "sweep --batch-sizes 32,abc",
        "sweep --batch-sizes 0",
        "sweep --implementations ddp,nope",
        "sweep --backends gloo,mpi",
        "sweep --arch nope",
        "sweep --arch mlp:depth=3",
        "sweep --steps 0",
        "sweep --steps 20,",
        "sweep --steps 20,auto",
        "sweep --exclude steps=20",
        "check --against torch-ddp --steps 20,100",
        "sweep --lr -1",
        "sweep --dtypes f8",
        "sweep --gpus 0",
        "sweep --group-sizes 3 --gpus 2",
        "sweep --sync-every 2 --implementations ddp",
        "sweep --bucket-cap-mb -3",
        "sweep --target-loss x",
        "sweep --exclude nonsense",
        "sweep --time-limit 5x",
        "sweep --config missing.toml",
        "sweep --config wrong.toml",
        "sweep --preset nope",
        "sweep --model mlp",
        "sweep --nnodes 2",
        "sweep --name ../escape --dry-run",
        "sweep --name base",
        "sweep --resume",
        "sweep --resume --name missing",
        "sweep --scaling strong --batch-sizes 63 --gpus 2 --dry-run",
        "sweep extra",
        "nope",
    ),
    "report": (
        "report example --no-charts --output out",
        "report results/base --no-charts --verbose",
        "report results/settings --no-charts --columns"
        " implementation,dtype,sync_every,accumulation_steps,images_per_second",
        "report results/failing --no-charts",
        "report results/base --no-charts --columns seed",
        "report results/base --format markdown",
        "report results/base --level rank --columns implementation,group_size,rank,samples"
        " --implementation ddp --backend shm --batch-size 16 --group-size 2",
        "report results/base --level collective --format markdown --columns"
        " collective,backend,nbytes,seconds",
        "report missing",
        "report results/base --columns nope",
        "report results/base --format nope",
    ),
    "explain": (
        "explain example",
        "explain example --verbose",
        "explain results/base",
        "explain results/base --json",
        "explain results/failing",
        "explain missing",
    ),
    "compare": (
        "compare example:backend=gloo example:backend=shm",
        "compare example example",
        "compare results/base results/strong",
        "compare results/base:implementation=torch-ddp results/base:implementation=ddp",
        "compare results/base:implementation=torch-ddp results/base:implementation=ddp --json",
        "compare results/base:backend=gloo results/base:backend=shm --format csv"
        " --metric images_per_second,efficiency",
        "compare results/settings:dtype=f32 results/settings:dtype=bf16 --within 1%",
        "compare results/base results/settings --force",
        "compare results/base:nope=1 results/base:implementation=ddp",
        "compare results/base:backend=gloo results/base:backend=shm --metric nope",
    ),
    "check": (
        "check --quiet --gpus 2 --threads 1 --implementations ddp"
        " --against torch-ddp --backends gloo --batch-sizes 32 --warmup 1 --steps 4"
        " --repetitions 5 --name gate",
        "check --quiet --baseline results/base --name gate2 --repetitions 3",
        "check --quiet --baseline results/base --gpus 2",
        "check --against nope",
        "check",
        "check --against torch-ddp --tolerance x",
    ),
    "predict": (
        "project example",
        "project example --topology measured --verbose --implementations ddp",
        "project example --json --implementations ddp --batch-sizes 16",
        "project results/base --group-sizes 4,8,64 --topology h100-nvswitch-ndr",
        "project example --change bandwidth=2 --implementations ddp",
        "project example --efficiency 80% --bandwidth 2.5 --implementations ddp --backends gloo",
        "project repository/results/published/torch_ddp_rtx3090.csv --group-sizes 4,8,16",
        "project missing",
        "project example --change nope=1",
    ),
    "train": (
        "train --show-config",
        "train --show-config --arch gpt --epochs 2 --optimizer adamw",
        "train --epochs 0",
        "train --arch nope",
        "train --resume missing",
        "train --lr x",
        "train --config missing.yaml",
        "train --batch-size 7x",
        "train --implementation nope",
        "train --checkpoint-every 0",
    ),
    "others": (
        "comm --backends gloo --gpus 2 --sizes 4KB,64KB --samples 5 --quiet --name comm1",
        "comm --sizes nope",
        "comm --collectives nope",
        "plot speedup results/base --output speedup.svg",
        "plot step-shares results/failing --output shares.png",
        "plot all missing",
        "plot nope example",
        "list --json",
        "init model.py",
        "init model.py",
        "launch --nproc-per-node nope script.py",
    ),
}
