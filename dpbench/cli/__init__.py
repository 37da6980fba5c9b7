"""The command line: one file a command, every heavy import inside the command."""
