"""Around all ranks of a trial: start them, watch them, say what happened."""
