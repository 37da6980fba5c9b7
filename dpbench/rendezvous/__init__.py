"""The ranks of a launch find each other, wait for each other, and leave.

It builds on `dpbench.parallel` and on torch.distributed's stores. Of benchmarks it knows the names
and traits of backends only.
"""
