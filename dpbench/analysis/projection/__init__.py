"""Speeds of group sizes and networks that were not measured: a law, or a simulated step."""
