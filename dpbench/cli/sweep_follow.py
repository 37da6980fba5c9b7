"""Every node of a sweep but node 0: it runs its ranks as it is told, and reports nothing."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpbench.cli.interrupts import as_exceptions
from dpbench.cli.messages import say
from dpbench.cli.node_here import node_here, said_unless
from dpbench.cli.nodes import Nodes
from dpbench.cli.sweep_options import ParsedOptions
from dpbench.cli.this_machine import machine_for
from dpbench.data.registry import prepare
from dpbench.errors import UsageError
from dpbench.files import folder_inside
from dpbench.launch.nodes.follower import follow
from dpbench.store import LOGS_FOLDER, TRACES_FOLDER, check_name
from dpbench.temporary import temporary_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """One invocation of `dpbench sweep` on such a node."""

    options: ParsedOptions
    nodes: Nodes
    name: str | None
    results_dir: Path
    data_dir: Path | None
    quiet: bool
    synthetic: bool
    dry_run: bool

    @property
    def folder(self) -> Path:
        """For the output of failed ranks and for traces; records are on node 0."""
        request = self.nodes.request
        plain_id = re.sub("[^A-Za-z0-9_.-]", "-", request.job_id)
        name = self.name or f"{plain_id}-node{request.node_rank}"
        check_name(name)
        return self.results_dir / name


def follow_sweep(job: Following) -> int:
    """Takes part until node 0 has no more to run, and returns the exit status."""
    if job.dry_run:
        raise UsageError("--dry-run: the plan is made by node 0; expected --node-rank 0")
    folder = job.folder
    machine = machine_for(synthetic=job.synthetic)
    listener = said_unless(quiet=job.quiet)
    me = node_here(
        job.options,
        job.nodes,
        machine,
        data_dir=job.data_dir,
        synthetic=job.synthetic,
        say=listener,
    )
    with temporary_folder() as cache, as_exceptions():

        def prepare_here(dataset: str) -> Path | None:
            prepared = prepare(
                dataset,
                data_dir=job.data_dir,
                cache=cache,
                architecture=job.options.options.arch,
            )
            for note in prepared.notes:
                say(note)
            return prepared.folder

        try:
            farewell = follow(
                job.nodes.request,
                me,
                prepare=prepare_here,
                logs=folder_inside(folder, LOGS_FOLDER),
                traces=folder_inside(folder, TRACES_FOLDER),
                say=listener,
            )
        finally:
            with suppress(OSError):  # it stays if something was left in it
                folder.rmdir()
    listener(farewell)
    return 0
