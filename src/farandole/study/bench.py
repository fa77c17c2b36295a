"""`farandole bench`: what this machine's ranks do in a second, one module a benchmark."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from farandole.study.cnn.command import add_cnn
from farandole.study.comm.command import add_comm

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_bench"]

_EXAMPLES = """\
examples:
  farandole bench comm -n 2                                 collectives of two ranks on this machine; half a minute
  farandole bench cnn --model resnet50 -n 2 --batch_size 8 --num_batches 10     images per second of training
"""


def add_bench(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "bench", help="measure this machine's ranks", description="Measure this machine's ranks.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    actions = verb.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    add_comm(actions)
    add_cnn(actions)
