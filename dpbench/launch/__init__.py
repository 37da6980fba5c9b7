"""The part around all ranks of a trial: start them, watch them, report what happened.

A *rank* is one process of a trial, and its number. A *node* is one of the computers of a sweep, as
in --nnodes; "host" stands for its name and its load only. A *machine* is what a node has: devices,
cores and backends.

    ranks          processes of this node, and the first cause when one of them fails
    rank_process   such a process from within; `script` has those that run the user's script
    failures       how a rank fails, and which failure is the first cause
    trial_runner   trials on this node and their outcomes; `cluster` has those on several nodes,
                   `collective_runner` the measurements of `dpbench comm`
    signed_store   what nodes, or ranks of a launched training, say to each other
    torchrun       `dpbench launch`

A rank ends what it has started before it ends itself. It is killed, with its process group, where
it hangs or another has failed, and kills itself where the launcher is gone. Where a rank may be on
its way, the server that ranks are forked from is killed with all of them.

Seconds that a trial may take are its `time_limit_seconds`; a `deadline` is a moment.
"""
