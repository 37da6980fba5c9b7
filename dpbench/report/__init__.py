"""Tables, charts, pages and files, made of summaries. Never touches torch."""
