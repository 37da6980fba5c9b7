"""Which of two sides is faster: what may be compared, by how much they differ, and the verdict."""
