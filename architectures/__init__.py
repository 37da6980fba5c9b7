"""What is trained: one file is one architecture; each imports torch only, never dpbench."""
