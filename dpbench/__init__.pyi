# Made by `make docs`.
# ruff: noqa
# fmt: off
from collections.abc import Sequence
from os import PathLike

__version__: str
from dpbench.report.answer import Answer as Answer
from dpbench.parallel.dp.data_parallel import DataParallel as DataParallel
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel as DistributedDataParallel
from dpbench.api.results import Results as Results
from dpbench.api.train import Trained as Trained
from dpbench.training.dp_train import TrainingResult as TrainingResult
from dpbench.analysis.scaling import analyze_scaling as analyze_scaling
from dpbench.api.dp_train import dp_train as dp_train
from dpbench.parallel.dp.scatter_gather import gather as gather
from dpbench.api.results import load as load
from dpbench.rendezvous.process_group import process_group as process_group
from dpbench.parallel.dp.scatter_gather import scatter as scatter

def check(
    arch: str | None = ...,
    *,
    candidate: str | PathLike[str] | Results | None = ...,
    baseline: str | PathLike[str] | Results | None = ...,
    progress: bool = ...,
    module: bool | None = ...,
    gpus: int | Sequence[int] | None = ...,
    implementations: str | Sequence[str] | None = ...,
    backends: str | Sequence[str] | None = ...,
    batch_sizes: int | Sequence[int] | None = ...,
    group_sizes: int | str | Sequence[int | str] | None = ...,
    data: str | None = ...,
    data_dir: str | PathLike[str] | None = ...,
    repetitions: int | None = ...,
    time_limit: float | str | None = ...,
    oversubscribe: bool | None = ...,
    results_dir: str | PathLike[str] | None = ...,
    name: str | None = ...,
    tolerance: str | None = ...,
    metric: str | Sequence[str] | None = ...,
    strict: bool | None = ...,
    force: bool | None = ...,
    against: str | None = ...,
    against_ref: str | None = ...,
    against_python: str | PathLike[str] | None = ...,
    junit: str | PathLike[str] | None = ...,
    markdown: str | PathLike[str] | None = ...,
    threads: int | None = ...,
    warmup: int | None = ...,
    steps: int | None = ...,
    budget: float | str | None = ...,
    config: str | PathLike[str] | None = ...,
    arguments: str | Sequence[str] | None = ...,
) -> Answer:
    """Check for a performance regression, like `dpbench check`.

        >>> dpbench.check("my_model.py:make", against_ref="origin/main").data["outcome"]
        >>> dpbench.check(candidate="results/new", baseline="results/old").data["summary"]

    Give `against_ref` to compare your code with a Git revision, `against_python` to compare this
    environment with another one, `against` to compare `implementations` with another one, or
    `candidate` and `baseline` to compare stored sweeps, which are folders or `Results`. A
    `candidate` may be a training script. `progress` prints on stderr.

    Returns:
        What the command prints as `text`, and the verdict of its `--json` as `data`, with the keys
        `outcome`, `exit_status`, `summary` and `rows`. A regression does not raise.

    Raises:
        UsageError: An argument is invalid.
        NotComparable: There is nothing to compare.
        FileError: A folder cannot be used.
        KeyboardInterrupt: After Ctrl-C.

    Options:
        module (bool): The script is a module, as in python -m.
        gpus (int | Sequence[int]): Number of GPUs, or ids (0,1); without CUDA, CPU replicas.
        implementations (str | Sequence[str]): Implementations; with --against, ddp.
        backends (str | Sequence[str]): gloo, shm or nccl; 'dpbench list backends' has all.
        batch_sizes (int | Sequence[int]): Samples per replica.
        group_sizes (int | str | Sequence[int | str]): Numbers of replicas; max: all --gpus.
        data (str): Dataset: a name from 'dpbench list', or file.py:function.
        data_dir (str | PathLike[str]): Folder with the MNIST files.
        repetitions (int): Initial runs of each row; more while inconclusive.
        time_limit (float | str): Time limit of each run.
        oversubscribe (bool): Allow more replicas than cores or GPUs.
        results_dir (str | PathLike[str]): Directory for results folders.
        name (str): Name of the results folder.
        tolerance (str): Slowdown to accept.
        metric (str | Sequence[str]): Metric, e.g. peak_memory_bytes=5%; may be repeated.
        strict (bool): Fail if the verdict is inconclusive.
        force (bool): Compare even if the environments differ.
        against (str): Compare with this implementation.
        against_ref (str): Compare with this Git revision of your code.
        against_python (str | PathLike[str]): Compare with this Python and its packages.
        junit (str | PathLike[str]): Write the verdict as JUnit XML.
        markdown (str | PathLike[str]): Write the verdict as Markdown.
        threads (int): CPU threads per replica.
        warmup (int): Warm-up steps.
        steps (int): Timed steps.
        budget (float | str): Time after which no runs are added.
        config (str | PathLike[str]): Read options from a TOML or YAML file.
        arguments (str | Sequence[str]): Arguments of the script."""

def explain(
    results_or_script: str | PathLike[str] | Results | None = ...,
    *,
    progress: bool = ...,
    module: bool | None = ...,
    repetitions: int | None = ...,
    time_limit: float | str | None = ...,
    oversubscribe: bool | None = ...,
    results_dir: str | PathLike[str] | None = ...,
    name: str | None = ...,
    implementations: str | Sequence[str] | None = ...,
    backends: str | Sequence[str] | None = ...,
    batch_sizes: int | Sequence[int] | None = ...,
    group_sizes: int | Sequence[int] | None = ...,
    gpus: int | Sequence[int] | None = ...,
    warmup: int | None = ...,
    steps: int | None = ...,
    threads: int | None = ...,
    arguments: str | Sequence[str] | None = ...,
) -> Answer:
    """Show where scaling efficiency is lost and what to try, like `dpbench explain`.

        >>> print(dpbench.explain("results/examples/two-cores", group_sizes=2))
        >>> dpbench.explain("train.py", arguments=["--epochs", "1"], gpus=2).data["configurations"]

    `results_or_script` is a results folder or its `Results`, whose rows the options choose, or a
    training script, which is measured first. Omit it for the latest folder in results/. `progress`
    prints on stderr.

    Returns:
        What the command prints as `text`, and all that its `--json` has as `data`.

    Raises:
        UsageError: An argument is invalid, or no row can be explained.
        FileError: The folder cannot be used.
        TrainingFailed: The script failed.
        KeyboardInterrupt: After Ctrl-C.

    Options:
        module (bool): The script is a module, as in python -m.
        repetitions (int): Runs of each row in fresh processes.
        time_limit (float | str): Time limit of each run.
        oversubscribe (bool): Allow more replicas than cores or GPUs.
        results_dir (str | PathLike[str]): Directory for results folders.
        name (str): Name of the results folder.
        implementations (str | Sequence[str]): Show only these implementations.
        backends (str | Sequence[str]): Show only these backends.
        batch_sizes (int | Sequence[int]): Show only these batch sizes.
        group_sizes (int | Sequence[int]): Show only these numbers of replicas.
        gpus (int | Sequence[int]): Number of GPUs, or ids (0,1); without CUDA, CPU replicas.
        warmup (int): Warm-up steps.
        steps (int): Timed steps.
        threads (int): CPU threads per replica.
        arguments (str | Sequence[str]): Arguments of the script."""

def sweep(
    arch: str | Sequence[str] | None = ...,
    *,
    report: bool = ...,
    progress: bool = ...,
    module: bool | None = ...,
    gpus: int | Sequence[int] | None = ...,
    implementations: str | Sequence[str] | None = ...,
    backends: str | Sequence[str] | None = ...,
    batch_sizes: int | Sequence[int] | None = ...,
    group_sizes: int | str | Sequence[int | str] | None = ...,
    data: str | None = ...,
    data_dir: str | PathLike[str] | None = ...,
    repetitions: int | None = ...,
    time_limit: float | str | None = ...,
    oversubscribe: bool | None = ...,
    results_dir: str | PathLike[str] | None = ...,
    name: str | None = ...,
    script: str | None = ...,
    scaling: str | Sequence[str] | None = ...,
    optimizer: str | Sequence[str] | None = ...,
    lr: float | Sequence[float] | None = ...,
    seed: int | Sequence[int] | None = ...,
    dtype: str | Sequence[str] | None = ...,
    compile: str | Sequence[str] | None = ...,
    accumulate: int | Sequence[int] | None = ...,
    sync_every: int | Sequence[int] | None = ...,
    bucket_cap_mb: float | Sequence[float] | None = ...,
    find_unused: str | Sequence[str] | None = ...,
    comm_hook: str | Sequence[str] | None = ...,
    batched_copy: str | Sequence[str] | None = ...,
    overlap: str | Sequence[str] | None = ...,
    prefetch: int | Sequence[int] | None = ...,
    data_workers: int | Sequence[int] | None = ...,
    threads: int | Sequence[int] | None = ...,
    warmup: int | Sequence[int] | None = ...,
    steps: int | Sequence[int] | None = ...,
    lr_scaling: str | None = ...,
    stop_after_failure: bool | None = ...,
    debug: bool | None = ...,
    nnodes: int | None = ...,
    node_rank: int | None = ...,
    rdzv_endpoint: str | None = ...,
    resume: bool | None = ...,
    charts: bool | None = ...,
    preset: str | None = ...,
    config: str | PathLike[str] | None = ...,
    arguments: str | Sequence[str] | None = ...,
) -> Results | None:
    """Benchmark implementations, backends, group sizes and batch sizes, like `dpbench sweep`.

        >>> results = dpbench.sweep("mlp", batch_sizes=[32, 64], gpus=2)
        >>> results.rows[["implementation", "group_size", "speedup"]]

    Every option that affects the measurement is an argument: `--batch-sizes 32,64` is
    `batch_sizes=[32, 64]`. Omit an argument, or pass None, for its default or the value of the
    `preset`. `arch` is a name, because each rank imports the model: "mlp", "my_model.py:make" or
    "my_package.models:make". Each trial is stored in a folder in `results_dir` as soon as it ends;
    `report` also writes the page of the command, and `progress` prints on stderr.

    Returns:
        The results, as `dpbench.load` reads them from the folder. A failed trial does not raise:
        its row has a status and a reason. Under a launcher, and on several nodes, only the process
        that records has results; the others return None.

    Raises:
        UsageError: An argument is invalid, or the dataset cannot be used.
        FileError: The results folder cannot be used.
        KeyboardInterrupt: After Ctrl-C; finished trials are stored, and the message says how to
            resume.

    Options:
        module (bool): The script is a module, as in python -m.
        gpus (int | Sequence[int]): Number of GPUs, or ids (0,1); without CUDA, CPU replicas.
        implementations (str | Sequence[str]): Implementations; see 'dpbench list implementations'.
        backends (str | Sequence[str]): gloo, shm or nccl; 'dpbench list backends' has all.
        batch_sizes (int | Sequence[int]): Samples per replica.
        group_sizes (int | str | Sequence[int | str]): Numbers of replicas to measure; max: all --gpus.
        data (str): Dataset: a name from 'dpbench list', or file.py:function.
        data_dir (str | PathLike[str]): Folder with the MNIST files.
        repetitions (int): Runs of each row in fresh processes.
        time_limit (float | str): Time limit of each run.
        oversubscribe (bool): Allow more replicas than cores or GPUs.
        results_dir (str | PathLike[str]): Directory for results folders.
        name (str): Name of the results folder.
        script (str): A training script to measure in the place of --arch.
        scaling (str | Sequence[str]): Fix the batch size per replica (weak) or per group (strong).
        optimizer (str | Sequence[str]): sgd, adam or adamw, also -fused or -foreach; adadelta, also -foreach.
        lr (float | Sequence[float]): Learning rate.
        seed (int | Sequence[int]): Seed for weights and sample order.
        dtype (str | Sequence[str]): Dtype of the forward pass: f32, bf16, f16 or tf32.
        compile (str | Sequence[str]): torch.compile: none, default, reduce-overhead, max-autotune.
        accumulate (int | Sequence[int]): Micro-batches per optimizer step.
        sync_every (int | Sequence[int]): Steps between parameter averages (local-sgd).
        bucket_cap_mb (float | Sequence[float]): Bucket size in MiB, or auto (ddp, torch-ddp).
        find_unused (str | Sequence[str]): Look for unused parameters: on, off or auto (ddp, torch-ddp).
        comm_hook (str | Sequence[str]): Gradient compression: none, bf16 or powersgd (ddp, torch-ddp).
        batched_copy (str | Sequence[str]): Copy the gradients of a bucket at once: on, off or auto (torch-ddp).
        overlap (str | Sequence[str]): Reduce gradients during the backward pass (ddp).
        prefetch (int | Sequence[int]): Steps to load ahead; resident: all on the device.
        data_workers (int | Sequence[int]): DataLoader workers per rank (with --prefetch, or of a script).
        threads (int | Sequence[int]): CPU threads per replica.
        warmup (int | Sequence[int]): Warm-up steps.
        steps (int | Sequence[int]): Timed steps.
        lr_scaling (str): Scale --lr with the samples per step: none, linear or sqrt.
        stop_after_failure (bool): Skip the larger group sizes of a row that failed.
        debug (bool): Enable debug logs of torch.distributed and NCCL.
        nnodes (int): Number of nodes; run the command on each.
        node_rank (int): Rank of this node; node 0 writes the results.
        rdzv_endpoint (str): Address where node 0 listens.
        resume (bool): Run the trials of --name that have not completed.
        charts (bool): Draw charts.
        preset (str): Start from a preset: quick, ci, full or paper.
        config (str | PathLike[str]): Read options from a TOML or YAML file.
        arguments (str | Sequence[str]): Arguments of the script."""

def train(
    arch: str | None = ...,
    *,
    progress: bool = ...,
    gpus: int | Sequence[int] | None = ...,
    implementation: str | None = ...,
    backend: str | None = ...,
    batch_size: int | None = ...,
    epochs: int | None = ...,
    resume: str | PathLike[str] | None = ...,
    optimizer: str | None = ...,
    lr: float | None = ...,
    seed: int | None = ...,
    dtype: str | None = ...,
    compile: str | None = ...,
    accumulate: int | None = ...,
    sync_every: int | None = ...,
    bucket_cap_mb: float | None = ...,
    prefetch: int | None = ...,
    threads: int | None = ...,
    data: str | None = ...,
    data_dir: str | PathLike[str] | None = ...,
    download: bool | None = ...,
    limit_train: int | None = ...,
    lr_scaling: str | None = ...,
    gamma: float | None = ...,
    max_norm: float | None = ...,
    last_batch: str | None = ...,
    balance: str | None = ...,
    max_steps: int | None = ...,
    evaluate: str | None = ...,
    check_sync_every: int | None = ...,
    oversubscribe: bool | None = ...,
    timeout: float | str | None = ...,
    debug: bool | None = ...,
    runs_dir: str | PathLike[str] | None = ...,
    checkpoint: str | PathLike[str] | None = ...,
    checkpoint_every: int | None = ...,
    max_checkpoints: int | None = ...,
    log_interval: int | None = ...,
    preset: str | None = ...,
    config: str | PathLike[str] | None = ...,
    name: str | None = ...,
) -> Trained:
    """Train a model for some epochs, with evaluation and checkpoints, like `dpbench train`.

        >>> trained = dpbench.train("mlp", epochs=5, gpus=2)
        >>> trained.finished.test_accuracy

    Every option that affects training is an argument (`gpus`: 2 is a count, [0, 1] are ids).
    Omit an argument, or pass None, for its default, or its value in the file `config`. The run
    folder is created in `runs_dir`. Under a launcher, the call trains as one of its ranks and
    returns on every rank. `progress` prints on stderr.

    Returns:
        The run folder, the end of its log and its models.

    Raises:
        UsageError: An argument is invalid, or the dataset cannot be used.
        FileError: A folder cannot be used.
        TrainingFailed: A rank failed.
        KeyboardInterrupt: After Ctrl-C; the message says how to resume.

    Options:
        gpus (int | Sequence[int]): Number of GPUs, or ids (0,1); without CUDA, CPU replicas.
        implementation (str): Implementation; see 'dpbench list implementations'.
        backend (str): gloo, shm or nccl; 'dpbench list backends' has all.
        batch_size (int): Samples per replica and micro-step.
        epochs (int): Passes over the training samples.
        resume (str | PathLike[str]): Run or checkpoint to continue; auto: the run of --name.
        optimizer (str): sgd, adam or adamw, also -fused or -foreach; adadelta, also -foreach.
        lr (float): Learning rate.
        seed (int): Seed for weights, sample order and dropout.
        dtype (str): Dtype of the forward pass: f32, bf16, f16 or tf32.
        compile (str): torch.compile: none, default, reduce-overhead, max-autotune.
        accumulate (int): Micro-batches per optimizer step.
        sync_every (int): Steps between parameter averages (local-sgd).
        bucket_cap_mb (float): Bucket size in MiB (ddp, torch-ddp).
        prefetch (int): Steps to load ahead.
        threads (int): CPU threads per replica.
        data (str): Dataset: a name from 'dpbench list'.
        data_dir (str | PathLike[str]): Folder with the MNIST files.
        download (bool): Download the MNIST files that --data-dir lacks.
        limit_train (int): Train on the first N samples.
        lr_scaling (str): Scale --lr with the samples per step: none, linear or sqrt.
        gamma (float): Multiply the learning rate by this each epoch (StepLR).
        max_norm (float): Clip the gradient norm to this value.
        last_batch (str): Incomplete batch at the end of an epoch: step or drop.
        balance (str): Split batches equally or by each rank's speed.
        max_steps (int): Stop after this many optimizer steps.
        evaluate (str): Evaluate on all ranks, on rank 0, or not at all.
        check_sync_every (int): Compare the ranks' parameters every K steps.
        oversubscribe (bool): Allow more replicas than cores or GPUs.
        timeout (float | str): Time that ranks wait for each other.
        debug (bool): Enable debug logs of torch.distributed and NCCL.
        runs_dir (str | PathLike[str]): Directory for run folders.
        checkpoint (str | PathLike[str]): Also write each checkpoint to this file.
        checkpoint_every (int): Steps between checkpoints.
        max_checkpoints (int): Checkpoints to keep: the latest N, and the best.
        log_interval (int): Steps between log lines.
        preset (str): Start from a preset: torch-ddp.
        config (str | PathLike[str]): Read options from a TOML or YAML file.
        name (str): Name of the run folder."""
