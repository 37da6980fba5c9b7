"""From summaries to what people read: tables, charts, files. Never touches torch."""

import tabulate

# Headers as wide as their words: two spaces more in each of 13 columns would not fit a terminal.
# Tabulate has no argument for it; set once, so that no layout depends on what was imported.
tabulate.MIN_PADDING = 0
