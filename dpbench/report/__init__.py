"""Results for people and programs: answers of commands, charts, the page, progress."""

DATA_FORMATS = ("csv", "json")
"""Formats of rows for programs: plain values, under all keys."""
FORMATS = ("text", "markdown", *DATA_FORMATS)
"""All formats of rows; "text" is for terminals."""
