"""Commands and Python calls share this: it makes plans of requests, runs them and fills folders."""
