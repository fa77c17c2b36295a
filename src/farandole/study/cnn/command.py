"""`farandole bench cnn`: on ranks it starts, or on those it was started on."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.study.cnn.settings import CnnSettings

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_cnn"]

_EXAMPLES = """\
examples:
  farandole bench cnn --model resnet50 --batch_size 8 --num_batches 10 --num_warmup_batches 2
  farandole bench cnn --model resnet20 --batch_size 128 -n 2 --num_intra_threads 1 --json here.json
  farandole bench cnn --model inception_v3 --framework tensorflow -n 2
  srun -n 8 farandole bench cnn --model resnet50 --style horovod
  farandole bench cnn --model resnet50 --data_dir images         JPEG folders instead of synthetic images
  farandole bench cnn --model gpt2-small --batch_size 1 --num_batches 10

Steps are those of `farandole run`. Lines are those of tf_cnn_benchmarks, of all ranks together, or of Horovod's benchmark.
"""


def add_cnn(actions: Verbs) -> None:
    action = actions.add_parser(
        "cnn", help="images per second of training, as tf_cnn_benchmarks and Horovod print them", epilog=_EXAMPLES,
        description="Images per second of training a CNN on synthetic images or JPEG files.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, argument_default=argparse.SUPPRESS,
    )  # fmt: skip
    add = action.add_argument
    # fmt: off
    add("-n", "-np", "--ranks", type=int, metavar="N", help="start N ranks; default: those this was started on, or one")
    where = action.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="a:2,b:2", help="start them on these hosts, so many on each")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help="the same, one host a line")
    add("--model", metavar="M", help="resnet50, resnet101, ..., as `farandole run cnn --help` lists them, or gpt2-small; default: resnet50")
    add("--framework", metavar="F", help="torch (a plain module), keras-torch, tensorflow, jax; default: torch")
    _both(action, "batch_size", "images a step on each rank; default: 32")
    _both(action, "num_batches", "steps that are measured; default: 100")
    _both(action, "num_warmup_batches", "steps before them; default: 10")
    _both(action, "display_every", "steps from line to line; default: 10")
    _both(action, "num_intra_threads", "threads a rank computes an operation with; default: its share of the cores")
    _both(action, "num_inter_threads", "operations at the same time, of torch and TensorFlow; default: theirs")
    _both(action, "image_size", "height and width of an image; default: as the network was made for")
    add("--classes", type=int, metavar="C", help="outputs of the network; default: 1000, 10 of CIFAR's ResNets")
    add("--optimizer", metavar="O", help="default: sgd")
    add("--data_format", "--data-format", metavar="F", help="NHWC or NCHW in memory, of torch; default: NHWC")
    add("--data_dir", "--data-dir", metavar="DIR", help="JPEG folders, DIR/train/CLASS/*.jpg and DIR/val; default: synthetic images")
    add("--style", metavar="S", help="whose lines: tf_cnn_benchmarks or horovod; default: tf_cnn_benchmarks")
    add("--num-batches-per-iter", dest="num_batches_per_iter", type=int, metavar="N", help="with --style horovod: steps of a measurement; default: 10")
    add("--num-iters", dest="num_iters", type=int, metavar="N", help="with --style horovod: measurements; default: 10")
    add("--json", metavar="FILE", help="also write everything to FILE")
    # fmt: on
    action.set_defaults(run=_cnn)


def _both(action: argparse.ArgumentParser, name: str, text: str) -> None:
    action.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest=name, type=int, metavar="N", help=text)


def _cnn(options: argparse.Namespace) -> int:
    given = vars(options)
    if any(name in given for name in ("ranks", "hosts", "hostfile")):
        return _on_new_ranks(_settings(given), given)
    from farandole.study.cnn.on_ranks import run
    from farandole.train.rank.running import is_first_of_node

    try:
        settings = _settings(given)
    except SettingsError:
        if not is_first_of_node():
            return 2  # the first one tells
        raise
    return run(settings)


def _settings(given: dict[str, Any]) -> CnnSettings:
    """Everything that can be wrong with what was typed is found here."""
    from farandole.study.cnn.settings import CnnSettings
    from farandole.study.comm.results import check_writable

    names = {field.name for field in dataclasses.fields(CnnSettings)}
    settings = CnnSettings(**{name: value for name, value in given.items() if name in names} | _measurements(given))
    if settings.json:
        settings.json = str(Path(settings.json).absolute())
        check_writable(Path(settings.json), "--json")
    return settings


def _measurements(given: dict[str, Any]) -> dict[str, int]:
    """Horovod's two numbers in place of tf_cnn_benchmarks'."""
    words = {"num_batches_per_iter": "--num-batches-per-iter", "num_iters": "--num-iters"}
    typed = [option for name, option in words.items() if name in given]
    if given.get("style") != "horovod":
        if typed:
            raise SettingsError(f"{typed[0]}: of --style horovod alone. Use --num_batches and --display_every, or give the style.")
        return {}
    if typed and "num_batches" in given:
        raise SettingsError(f"--num_batches and {typed[0]} exclude each other. Leave one out.")
    each = given.get("num_batches_per_iter", given.get("display_every", 10))
    return {"display_every": each} | ({} if "num_batches" in given else {"num_batches": each * given.get("num_iters", 10)})


def _on_new_ranks(settings: CnnSettings, given: dict[str, Any]) -> int:
    from farandole.launch.allocation import choose_hosts
    from farandole.launch.launcher import launch
    from farandole.launch.settings import LaunchSettings
    from farandole.train.launching import SortedOutput

    program = [sys.executable, "-m", "farandole.study.cnn.on_ranks", json.dumps(settings.as_dict())]
    job = LaunchSettings(
        command=program, ranks=given.get("ranks", 0), hosts=choose_hosts(given.get("hosts"), given.get("hostfile"), os.environ),
        threads=settings.num_intra_threads or None, repeat=shlex.join(["farandole", *sys.argv[1:]]),
    )  # fmt: skip
    return launch(job, SortedOutput(sys.stdout))
