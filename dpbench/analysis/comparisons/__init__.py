"""Comparison of two sides: what may be compared, by how much they differ, and the verdict."""
