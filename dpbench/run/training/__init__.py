"""`train`: from options to a training, its run folder, and its ranks."""
