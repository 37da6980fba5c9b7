"""A training script of the user's, unchanged, whose steps are timed from inside its process."""
