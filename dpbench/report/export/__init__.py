"""Tables for other programs and for documents: one writer a format."""
