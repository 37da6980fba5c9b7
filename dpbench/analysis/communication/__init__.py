"""What collectives cost: measured curves, cost models, networks."""
