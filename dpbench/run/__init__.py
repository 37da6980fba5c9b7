"""What commands and Python calls share: from a request to a plan, to a run, to its folder."""
