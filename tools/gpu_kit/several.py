"""What a sweep on several GPUs has to show: `python -m tools.gpu_kit.several FOLDER cuda:2,cuda:3`.

It has run on these devices, has recorded which GPUs they are, and remarks on GPUs that differ and
on gloo where nccl would be better.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from dpbench.analysis.diagnosis.hints import hints
from dpbench.analysis.rows import summarize
from dpbench.store import StoredSweep, load


def main(folder: str, devices: str) -> int:
    errors = [*_errors(load(Path(folder)), {*devices.split(",")})]
    for error in errors:
        print(f"Error: {error}")
    print(f"{len(errors)} of the checks failed")
    return int(bool(errors))


def _errors(sweep: StoredSweep, expected: set[str]) -> Iterator[str]:
    used = {rank.device for record in sweep.records for rank in record.ranks}
    if used != expected:
        yield f"ran on {sorted(used)}, expected {sorted(expected)}"
    for environment in sweep.environments.values():
        variables = {one[0]: one[1] for one in environment.variables}
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        if visible != os.environ.get("CUDA_VISIBLE_DEVICES"):
            yield f"recorded CUDA_VISIBLE_DEVICES={visible}"
        if any(gpu.uuid is None for gpu in environment.accelerators):
            yield "a GPU has no UUID in the record"
    remarks = "\n".join(hints(summarize(sweep.records), sweep.environments))
    gpus = [gpu for one in sweep.environments.values() for gpu in one.accelerators]
    names = {gpu.name for gpu in gpus if f"cuda:{gpu.index}" in used}
    if ("its GPUs differ" in remarks) != (len(names) > 1):
        yield f"the GPUs are {sorted(names)}, and the remarks are {remarks!r}"
    only_gloo = {record.trial.backend for record in sweep.records} == {"gloo"}
    many = len(used - {"cpu"}) >= 4
    if ("nccl sends them" in remarks) != (only_gloo and many):
        yield f"ran gloo on {len(used)} devices, and the remarks are {remarks!r}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
