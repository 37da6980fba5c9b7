"""The ranks of `dpbench train`."""
