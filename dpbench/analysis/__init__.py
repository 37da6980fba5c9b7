"""Analysis of records: metrics, intervals, speedups, one summary per configuration.

It only reads records: it never touches torch, devices or running trials.
"""
