"""Costs of collectives: measured curves, cost models, networks."""
