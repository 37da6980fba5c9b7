"""A training step as a simulation: gradients, buckets, communication, stragglers."""
