"""Every node of a sweep but node 0: it runs its ranks as it is told, and reports nothing."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from dpbench.data.registry import prepare
from dpbench.errors import UsageError
from dpbench.files import folder_inside
from dpbench.launch.nodes.follower import follow
from dpbench.launch.nodes.node import NodeRequest
from dpbench.messages import say
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.node_here import node_here, said_unless
from dpbench.run.sweep.nodes import Nodes
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.this_machine import machine_for
from dpbench.store import LOGS_FOLDER, TRACES_FOLDER, check_name
from dpbench.temporary import temporary_folder


def follow_sweep(parsed: ParsedOptions, nodes: Nodes) -> int:
    """Takes part until node 0 has no more to run, and returns the exit status."""
    options = parsed.options
    if options.dry_run:
        raise UsageError("--dry-run: the plan is made by node 0; expected --node-rank 0")
    folder = _folder(options, nodes.request)
    machine = machine_for(synthetic=options.synthetic)
    listener = said_unless(quiet=options.quiet)
    me = node_here(
        parsed,
        nodes,
        machine,
        data_dir=options.data_dir,
        synthetic=options.synthetic,
        say=listener,
    )
    with temporary_folder() as cache, as_exceptions():

        def prepare_here(dataset: str) -> Path | None:
            prepared = prepare(
                dataset,
                data_dir=options.data_dir,
                cache=cache,
                architecture=options.arch,
            )
            for note in prepared.notes:
                say(note)
            return prepared.folder

        try:
            farewell = follow(
                nodes.request,
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


def _folder(options: SweepOptions, request: NodeRequest) -> Path:
    """For the output of failed ranks and for traces; records are on node 0."""
    plain_id = re.sub("[^A-Za-z0-9_.-]", "-", request.job_id)
    name = options.name or f"{plain_id}-node{request.node_rank}"
    check_name(name)
    return options.results_dir / name
