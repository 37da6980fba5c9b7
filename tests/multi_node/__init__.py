"""Two hosts on one machine: network namespaces joined by a link of a given rate."""
