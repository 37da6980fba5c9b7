"""Sweeps: from options to trials, to records in a results folder, on one node or several."""
