"""Python imports this in every process that a test starts, where commands may use other runners."""

import os

if "DPBENCH_SYNTHETIC" in os.environ:
    from tests.launch import synthetic

    until_the_end = synthetic.in_use()  # it would leave if it was collected
    until_the_end.__enter__()
