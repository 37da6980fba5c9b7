"""The ranks of a launch find each other, wait for each other, and leave.

    process_group         the default group of a launch, which is left whatever happens
    barrier               wait for all ranks, and name the ones that do not come
    on_first_rank         one rank works alone while the others wait for it
    Placement             the place of a process in its launch; torchrun's variables
    local_device          which GPU of its node a process takes
    available_backends    which backends can be used here, and why not

It builds on `dpbench.parallel` and on torch.distributed's stores, and knows nothing of benchmarks.
"""
