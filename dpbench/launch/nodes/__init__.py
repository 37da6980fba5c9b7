"""Trials whose ranks live on several hosts: node 0 leads, the others do as it says."""
