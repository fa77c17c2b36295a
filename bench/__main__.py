"""`python -m bench [NAME ...] [--quick] [--json FILE] [--list]`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine
from bench.catalogue import BENCHMARKS, Outcome
from bench.launching import BenchmarkFailed
from bench.rows import table


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # So that ranks are ended when we are.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{b.name:15} {b.summary}" for b in BENCHMARKS.values()))
        return 0
    return _run(options.names or list(BENCHMARKS), options.quick, options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure farandole against its peers, side by side in one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; default: all")
    parser.add_argument("--quick", action="store_true", help="rough figures; all benchmarks: about 12 minutes instead of 50 (estimates)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write figures and samples to FILE")
    parser.add_argument("--list", action="store_true", help="say what there is")
    return parser


def _run(names: list[str], quick: bool, json_path: Path | None) -> int:
    found = machine.facts()
    warning = machine.busy_warning(found)
    if warning is not None:
        _say(f"warning: {warning}")
    outcomes: dict[str, Outcome] = {}
    failures: dict[str, str] = {}
    began_s = time.monotonic()
    for name in names:
        _say(f"{name}: {BENCHMARKS[name].summary} ({time.monotonic() - began_s:.0f} s since start)")
        try:
            outcomes[name] = BENCHMARKS[name].run(quick)
            _say(f"{name}:\n{table(outcomes[name].rows)}")
        except BenchmarkFailed as failure:
            failures[name] = str(failure)
            _say(f"{name} failed: {failure}")
        took_s = time.monotonic() - began_s
        if json_path is not None:  # after each, so that a run that is cut off has not been in vain
            results = {"machine": found, "warning": warning, "quick": quick, "took_s": round(took_s, 1)}
            results |= {"benchmarks": _as_json(outcomes), "failures": failures}
            json_path.write_text(json.dumps(results, indent=1))
    _print(found, warning, outcomes, failures, took_s)
    return 1 if failures else 0


def _print(
    found: dict[str, Any],
    warning: str | None,
    outcomes: dict[str, Outcome],
    failures: dict[str, str],
    took_s: float,
) -> None:
    print(f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, {_versions(found)}")
    if warning is not None:
        print(f"warning: {warning}")
    print()
    print(table([row for outcome in outcomes.values() for row in outcome.rows]))
    targets = [row.target for outcome in outcomes.values() for row in outcome.rows if row.target]
    print(f"\n{sum(t.met for t in targets)} of {len(targets)} targets met, in {took_s:.0f} s")
    for name, failure in failures.items():
        print(f"{name} failed: {failure}")


def _versions(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)


def _as_json(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {name: asdict(outcome) for name, outcome in outcomes.items()}


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
