"""dpbench from Python and notebooks: results as frames, sweeps as calls."""
