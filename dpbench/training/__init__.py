"""The ranks of `dpbench train`; and `dp_train`, a training loop in one call."""
