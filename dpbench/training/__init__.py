"""Training above the launcher: `dp_train`, and what `dpbench train` runs on each rank."""
