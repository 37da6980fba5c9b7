"""Runs on a machine with a GPU what no other test can: `make gpu`; `--rehearse` runs it without."""
