"""What people and programs see of results: answers of commands, charts, the page, progress."""
