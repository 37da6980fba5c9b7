"""Figures that the project promises, measured side by side in one run: `make bench`.

Not part of the test suite: a shared machine cannot promise a time, only show a ratio.
"""
