"""What the report page says, as values; `templates/page.html.jinja` lays it out."""
