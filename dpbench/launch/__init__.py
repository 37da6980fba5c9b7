"""The part around all ranks of a trial: start them, watch them, report what happened."""
