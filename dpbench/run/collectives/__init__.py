"""`comm`: from options to measurements of collectives, to records in a results folder."""
