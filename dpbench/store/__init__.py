"""Folders of results: what is written while a sweep runs, and how it is read back."""

from dpbench.store.folder import COLLECTIVES_FILE as COLLECTIVES_FILE
from dpbench.store.folder import COMM_FILE as COMM_FILE
from dpbench.store.folder import LOGS_FOLDER as LOGS_FOLDER
from dpbench.store.folder import SWEEP_FILE as SWEEP_FILE
from dpbench.store.folder import TRIALS_FILE as TRIALS_FILE
from dpbench.store.folder import ResultsFolder as ResultsFolder
from dpbench.store.folder import StoredCollectives as StoredCollectives
from dpbench.store.folder import StoredSweep as StoredSweep
from dpbench.store.folder import check_name as check_name
from dpbench.store.folder import holds_collectives as holds_collectives
from dpbench.store.folder import holds_sweep as holds_sweep
from dpbench.store.folder import load_collectives as load_collectives
from dpbench.store.folder import load_sweep as load_sweep
from dpbench.store.folder import require_free as require_free
