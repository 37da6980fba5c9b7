"""Every field of every row, declared once: rows, tables, the page, exports, schemas and
comparisons are made from these declarations."""
