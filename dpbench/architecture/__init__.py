"""Architectures: their protocol, and loading one by name.

An architecture is a module in `architectures/`, a function in your own module or file, or a
classifier of torchvision (`naming` has the spellings). `names` and everything else that only needs
the name import neither torch nor an architecture.
"""

from dpbench.architecture.loading import load_architecture as load_architecture
from dpbench.architecture.loading import load_function as load_function
from dpbench.architecture.loading import names as names
from dpbench.architecture.loading import options as options
from dpbench.architecture.loading import torchvision_reason as torchvision_reason
from dpbench.architecture.naming import LONGEST_FOLDER_NAME as LONGEST_FOLDER_NAME
from dpbench.architecture.naming import folder_name as folder_name
from dpbench.architecture.naming import is_user_code as is_user_code
from dpbench.architecture.naming import make_importable as make_importable
from dpbench.architecture.protocol import Architecture as Architecture
from dpbench.architecture.protocol import SupportsAccuracy as SupportsAccuracy
from dpbench.architecture.protocol import architecture_notes as architecture_notes
from dpbench.architecture.protocol import items_per_sample as items_per_sample
