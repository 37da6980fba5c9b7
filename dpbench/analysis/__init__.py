"""From records to numbers: metrics, intervals, speedups, one summary per configuration.

Reads records only: never touches torch, devices or running trials.
"""
