"""The options of `dpbench report`."""

LATEST_RESULTS = "the latest in results/"
"""Default of commands that read results, if no folder is given."""
