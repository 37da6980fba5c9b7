"""Scaling laws: fitted, judged on what they have not seen, and refused beyond."""
