"""Programs that measure and exercise dpbench itself. They are not tests; see CONTRIBUTING.md."""
