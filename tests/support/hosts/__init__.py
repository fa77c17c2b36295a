"""Several hosts on one machine, for tests and benchmarks that need a network between ranks.

    with Network(["alpha", "beta"], rate="2gbit") as network:
        subprocess.run(network.on_head(["farandole", "launch", "-H", "alpha:2,beta:2", ...]), env=...)

Each host is a network namespace with an address, a hostname and, if asked, a clock of its own; they hang on one
bridge, that of the head, from which jobs are started. What starts processes on other hosts by ssh finds a
stand-in for it.
"""

from .network import Network, Traffic, lacking

__all__ = ["Network", "Traffic", "lacking"]
