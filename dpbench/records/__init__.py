"""What happened: the records of trials and of measured collectives, and on what they ran."""
