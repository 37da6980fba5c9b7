"""The backend "shm+gloo": memory among the ranks of a host, gloo among one leader of each host.

dist.init_process_group("shm+gloo")   after `import dpbench`, or with new_group(backend="shm+gloo")
HostsProcessGroup                     such a group, unless all its ranks are on one host
"""

from __future__ import annotations

from dpbench.parallel.hosts.process_group import HostsProcessGroup, create

__all__ = ["HostsProcessGroup", "create"]
