"""Benchmarks of dpbench itself: `python -m tools.benchmarks [NAME …]`."""
