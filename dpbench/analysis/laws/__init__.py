"""Scaling laws: fitted, judged on data they have not seen, and refused beyond their reach.

The classical ones are plain functions: `from dpbench.analysis.laws import amdahl, usl`.
"""

from dpbench.analysis.laws.classical import amdahl, gustafson, karp_flatt, usl, usl_peak

__all__ = ["amdahl", "gustafson", "karp_flatt", "usl", "usl_peak"]
