"""`project`, `iso`, `what-if` and `buckets`: what is predicted from, and how it is asked for."""
