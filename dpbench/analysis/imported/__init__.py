"""Parsers for the output of other tools: each knows one tool, and reports the line of a log that it
does not understand."""
