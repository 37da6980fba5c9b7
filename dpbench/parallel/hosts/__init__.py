"""The backend "shm+gloo": memory among the ranks of a host, gloo among one leader of each host.

dist.init_process_group("shm+gloo")   after `import dpbench.parallel`
HostsProcessGroup                     such a group, unless all its ranks are on one host
"""

from __future__ import annotations

from dpbench.parallel.hosts.process_group import HostsProcessGroup, create

__all__ = ["HostsProcessGroup", "create"]
