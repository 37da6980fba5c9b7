"""Real and synthetic datasets, and the assignment of their samples to ranks."""
