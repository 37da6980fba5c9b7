"""From summaries to what people read: tables, charts, files. Never touches torch."""
