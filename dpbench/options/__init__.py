"""Options: one pydantic model per command, for the command line, Python, config files and help."""
