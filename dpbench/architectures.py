"""The modules of the folder `architectures/`, as `dpbench.architectures.NAME`."""

from dpbench import shipped

__path__ = [str(shipped.ARCHITECTURES)]
