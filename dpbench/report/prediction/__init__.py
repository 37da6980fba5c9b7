"""Text and JSON of predictions: projections, fits, batch sizes, changes and bucket caps."""
