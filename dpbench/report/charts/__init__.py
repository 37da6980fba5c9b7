"""Charts, one a file; none of them needs a display or touches matplotlib's global state."""
