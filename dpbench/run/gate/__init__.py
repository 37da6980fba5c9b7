"""`check` and `calibrate`: a sweep whose records are judged."""
