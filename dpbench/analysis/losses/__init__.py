"""How training learns: losses over samples and seconds, and whether runs agree."""
