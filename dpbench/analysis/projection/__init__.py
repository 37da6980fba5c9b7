"""Projection of training on any number of replicas, from one worker and a network."""
