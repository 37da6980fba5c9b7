"""Answers of commands, one module per command."""
