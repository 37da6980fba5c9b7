"""A sweep's rows and steps in TensorBoard; MLflow and Weights & Biases take the same loop.

pip install tensorboard
python docs/recipes/experiment_tracking.py results/examples/two-cores runs/tensorboard
tensorboard --logdir runs/tensorboard
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import dpbench

CONFIGURATION = ["implementation", "backend", "group_size", "batch_size"]
OF_ROWS = ["images_per_second", "efficiency", "exposed_communication_seconds", "final_loss"]
OF_STEPS = ["seconds", "loss"]


def main(results_dir: str, log_dir: str, new_writer: Callable[[str], Any] | None = None) -> int:
    """Log each configuration as its own run, and return their number."""
    if new_writer is None:
        from torch.utils.tensorboard import SummaryWriter

        new_writer = SummaryWriter

    results = dpbench.load(results_dir)
    rows = results.rows.set_index(CONFIGURATION)[OF_ROWS]
    steps = results.steps.query("window == 'timed' and rank == 0 and repetition == 0")
    steps = steps.set_index([*CONFIGURATION, "step"])[OF_STEPS].sort_index()
    for configuration, row in rows.iterrows():
        writer = new_writer(f"{log_dir}/{'-'.join(map(str, configuration))}")
        for name, value in row.dropna().items():
            writer.add_scalar(f"row/{name}", value, 0)
        for step, values in steps.loc[configuration].iterrows():
            for name, value in values.dropna().items():
                writer.add_scalar(f"step/{name}", value, step)
        writer.close()
    return len(rows)


# MLflow instead of the writer:
#     with mlflow.start_run(run_name=...):
#         mlflow.log_metric("step/loss", value, step=step)
# Weights & Biases:
#     run = wandb.init(project="dpbench", name=...)
#     run.log({"step/loss": value}, step=step)

if __name__ == "__main__":
    main(*sys.argv[1:])
