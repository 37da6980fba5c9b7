"""`dpbench train` as a function: two ranks on the handwritten digits, then the model to use.

python docs/recipes/train_from_python.py
"""

from __future__ import annotations

from typing import Any

import torch

import dpbench


def main(**options: Any) -> float:
    trained = dpbench.train(**({"arch": "mlp", "backend": "shm", "gpus": 2, "epochs": 5} | options))
    model = trained.load_model()
    with torch.no_grad():
        classes = model(torch.zeros(1, 1, 28, 28)).shape[1]
    accuracy = trained.finished.test_accuracy or 0.0
    print(
        f"accuracy {accuracy:.1%} over {classes} classes, log and checkpoints in {trained.folder}"
    )
    return accuracy


if __name__ == "__main__":
    main()
