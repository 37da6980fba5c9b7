"""A sweep from Python, its numbers as a frame, and what they say about more replicas.

python docs/recipes/measure_from_python.py
"""

from __future__ import annotations

from typing import Any

import dpbench


def main(**options: Any) -> dict[int, float]:
    results = dpbench.sweep(
        **({"implementations": "ddp", "backends": "shm", "batch_sizes": 64, "gpus": 2} | options)
    )
    print(results.summary)
    print(results.rows[["implementation", "group_size", "speedup", "status"]])

    # Speedup and efficiency of times from elsewhere.
    points = dpbench.analyze_scaling(120.0, {2: 65.0, 4: 35.0, 8: 20.0})
    for point in points:
        print(f"{point.group_size} GPUs: {point.speedup:.2f} times as fast")
    return {point.group_size: point.speedup for point in points}


if __name__ == "__main__":
    main()
