"""Folders of results: what is written while a sweep runs, and how it is read back."""

from dpbench.folders.results_folder import COLLECTIVES_FILE as COLLECTIVES_FILE
from dpbench.folders.results_folder import COMM_FILE as COMM_FILE
from dpbench.folders.results_folder import LOGS_FOLDER as LOGS_FOLDER
from dpbench.folders.results_folder import SWEEP_FILE as SWEEP_FILE
from dpbench.folders.results_folder import TRIALS_FILE as TRIALS_FILE
from dpbench.folders.results_folder import ResultsFolder as ResultsFolder
from dpbench.folders.results_folder import StoredCollectives as StoredCollectives
from dpbench.folders.results_folder import StoredSweep as StoredSweep
from dpbench.folders.results_folder import check_name as check_name
from dpbench.folders.results_folder import holds_collectives as holds_collectives
from dpbench.folders.results_folder import holds_sweep as holds_sweep
from dpbench.folders.results_folder import load_collectives as load_collectives
from dpbench.folders.results_folder import load_sweep as load_sweep
from dpbench.folders.results_folder import require_free as require_free
