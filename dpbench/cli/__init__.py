"""The command line: a file for a command or for commands that share their options; what is heavy is
imported inside them."""
