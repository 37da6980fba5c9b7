"""Real and synthetic datasets, and which rank trains on which of their samples."""
