"""What each command answers, a module a command."""
