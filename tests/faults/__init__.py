"""Faults that really happen to sweeps, many times each: `make faults` prints how many held."""
