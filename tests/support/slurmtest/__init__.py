"""A real Slurm on this machine, for tests: its daemons in a folder of their own, and jobs given to it.

Two nodes run side by side under the names n1 and n2. Nothing outside the folder is read or written, no port is
fixed, and nothing is left when the context ends.
"""

from slurmtest.cluster import NODES, Cluster, ClusterFailed
from slurmtest.packages import missing_programs

__all__ = ["NODES", "Cluster", "ClusterFailed", "missing_programs"]
