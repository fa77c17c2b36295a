"""Several hosts on one machine, for as long as a command runs: `python -m tests.support.hosts --help`."""

import argparse
import os
import subprocess
import sys

from .network import Network, lacking

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Run the command on the head of a network; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.hosts",
        description="Make hosts of network namespaces, run a command that starts ranks on them, take them down. As root.",
        epilog="python -m tests.support.hosts -- farandole launch -n 2 --hosts alpha:1,beta:1 -- python train.py",
    )
    parser.add_argument("--names", default="alpha,beta", help="the hosts, default: %(default)s")
    parser.add_argument("--rate", default="2gbit", help="of each link, each way, as tc writes it, default: %(default)s")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args(words)
    reason = lacking()
    if reason:
        parser.error(reason)
    with Network(options.names.split(","), rate=options.rate) as network:
        return subprocess.run(network.on_head(options.command), env=os.environ | network.variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
