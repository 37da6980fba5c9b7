"""`dpbench check`: two sides are measured, or read from folders, and compared until it is clear."""
