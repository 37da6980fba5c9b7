"""A training script of the user's, unchanged, whose steps are timed from inside its process.

These modules run in the script's Python, which may be another one than dpbench's: they import the
standard library and torch only.
"""
