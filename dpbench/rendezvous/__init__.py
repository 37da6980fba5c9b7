"""The ranks of a launch find each other, wait for each other, and leave.

    process_group         the default group of a launch, which is left whatever happens
    barrier               wait for all ranks, and name the ones that do not come
    on_first_rank         one rank works alone while the others wait for it
    placement             the place of a process in its launch, and which GPU it takes
    missing_backends      which backends cannot be used here, and why

It builds on `dpbench.parallel` and on torch.distributed's stores. Of benchmarks it knows the names
and traits of backends only.
"""
