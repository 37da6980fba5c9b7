"""The commands that measure or train: `sweep`, `explain`, `check`, `comm` and `train`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dpbench.cli.command import command
from dpbench.options.check import CheckOptions
from dpbench.options.comm import CommOptions
from dpbench.options.explain import ExplainOptions
from dpbench.options.sweep import SweepOptions
from dpbench.options.train import TrainOptions

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


@command(SweepOptions)
def sweep(options: SweepOptions) -> Answer | None:
    """Benchmark implementations, backends, group sizes and batch sizes.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    dpbench sweep --backends gloo,shm --gpus 2 train.py --epochs 1

    Exit status: 0 all rows completed or skipped, at least one that you asked for
    completed; 1 some row failed, or only the baseline completed; 2 usage;
    6 wrong gradients in some row; 130 interrupted.
    """
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.sweep import answer

    return answer.sweep(options, TrialProgress(quiet=options.quiet))


@command(ExplainOptions)
def explain(options: ExplainOptions) -> Answer:
    """Show where scaling efficiency is lost, and what to try.

    dpbench explain --gpus 4 train.py --epochs 1

    dpbench explain results/before-the-change --group-sizes 2

    A training script is measured as it is, on one rank, as copies, and on all ranks.
    Without options that choose rows, explains the fastest one with several replicas. Include
    independent in the sweep to separate contention from the wrapper.

    Exit status: 0 explained; 1 the script failed; 2 usage; 4 inconclusive: too
    noisy for an efficiency; 130 interrupted.
    """
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run import explaining

    return explaining.explain(options, TrialProgress(quiet=options.quiet))


@command(CheckOptions)
def check(options: CheckOptions) -> Answer:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%
    dpbench check --against-python ../torch-2.15/bin/python train.py --epochs 1

    Compares your code with a Git revision (--against-ref) or another Python
    (--against-python), implementations (--against), or sweeps (--baseline).

    Exit status: 0 pass, or inconclusive without --strict; 1 some row failed;
    2 usage; 3 regressed; 4 inconclusive with --strict; 5 no baseline, or one
    that cannot be compared; 6 wrong gradients; 130 interrupted.
    """
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.check import checking

    return checking.check(options, TrialProgress(quiet=options.quiet))


@command(CommOptions)
def comm(options: CommOptions) -> Answer:
    """Measure collectives by message size: latency and bandwidth.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed.

    Exit status: 0 all measurements completed; 1 some failed; 2 usage; 130 interrupted.
    """
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run import collectives

    return collectives.comm(options, TrialProgress(quiet=options.quiet, noun="measurement"))


@command(TrainOptions)
def train(options: TrainOptions) -> Answer | None:
    """Train a model, with evaluation, checkpoints and resume.

    dpbench train --gpus 2 --backend shm

    Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
    torchrun, dpbench launch, srun or mpirun, it joins their ranks.
    """
    from dpbench.run.training import ranks
    from dpbench.run.training.preparation import describe_training

    if options.dry_run:
        return describe_training(options)
    ranks.train(options, sys.stderr if options.as_json or options.json_lines else sys.stdout)
    return None
