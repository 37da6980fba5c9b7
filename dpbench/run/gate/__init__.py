"""`check`: a sweep whose records are judged."""
