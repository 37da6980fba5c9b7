"""torch's own tests for DistributedDataParallel, taken from the installed wheel, run with ours."""
