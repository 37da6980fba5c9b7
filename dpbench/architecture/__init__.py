"""Architectures: their protocol, and loading one by name.

An architecture is a module in `architectures/`, a function in your own module or file, or a
classifier of torchvision (`naming` has the spellings). What only needs the name, such as
`shipped_architectures`, imports neither torch nor an architecture.
"""

from dpbench.architecture.loading import architecture_options as architecture_options
from dpbench.architecture.loading import load_architecture as load_architecture
from dpbench.architecture.loading import load_function as load_function
from dpbench.architecture.loading import shipped_architectures as shipped_architectures
from dpbench.architecture.loading import torchvision_reason as torchvision_reason
from dpbench.architecture.naming import is_user_code as is_user_code
from dpbench.architecture.naming import make_importable as make_importable
from dpbench.architecture.protocol import Architecture as Architecture
from dpbench.architecture.protocol import SupportsAccuracy as SupportsAccuracy
from dpbench.architecture.protocol import architecture_notes as architecture_notes
from dpbench.architecture.protocol import items_per_sample as items_per_sample
