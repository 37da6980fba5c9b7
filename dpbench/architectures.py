"""What is trained, as `dpbench.architectures.NAME`: the modules of the folder `architectures/`."""

from dpbench import shipped

__path__ = [str(shipped.ARCHITECTURES)]
