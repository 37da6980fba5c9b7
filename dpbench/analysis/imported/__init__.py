"""What other tools printed, read into values: each parser knows one tool, and says which line of a
log it does not understand."""
