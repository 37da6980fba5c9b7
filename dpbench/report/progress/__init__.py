"""Progress while something runs: what is known of it, and how a terminal shows it."""
