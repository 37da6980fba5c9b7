"""Trials whose ranks run on several hosts: node 0 leads, the others follow its orders."""
