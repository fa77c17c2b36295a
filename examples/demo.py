"""`make demo`: the same training on 1 and on 2 ranks, compared.

    python examples/demo.py

Both runs do the same steps on the same batches, each rank with as many threads as one of two ranks gets here:
the second rank brings the other half of the cores, as a second node would bring its own. What was measured and
a timeline of each run are kept in out/demo/.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = Path("out", "demo")
MOST_RANKS = 2
LIMIT_S = 120


def launch(ranks: int, threads: int, out: Path, arguments: list[str]) -> dict[str, Any]:
    """Train on `ranks` ranks; what train.py measured."""
    result = out / f"ranks-{ranks}.json"
    result.unlink(missing_ok=True)
    options = ["-n", str(ranks), "--threads", str(threads), "--timeline", str(timeline(out, ranks))]
    training = [sys.executable, str(HERE / "train.py"), *arguments, "--json", str(result)]
    # One rank has the terminal to itself: its lines must not overtake ours.
    print(f"Training on {ranks} rank{'s' * (ranks > 1)} ...", flush=True)
    code = run([sys.executable, "-m", "farandole", "launch", *options, "--", *training])
    if code != 0 or not result.exists():
        raise SystemExit(
            f"\nTraining on {ranks} rank(s) failed with exit code {code}; the reason is above. Whether ranks can "
            f"start here, and what to install if not, says:\n  {sys.executable} -m farandole doctor"
        )
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def run(command: list[str]) -> int:
    try:
        return subprocess.run(command, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        raise SystemExit(f"\nNot done after {LIMIT_S} s, so it was ended: {' '.join(command)}") from None


def timeline(out: Path, ranks: int) -> Path:
    return out / f"timeline-{ranks}.json"


def table(runs: list[dict[str, Any]]) -> str:
    """One line a run; the first is the base of the speed-up."""
    lines = ["ranks  step time ms  samples/s    loss  accuracy  speed-up"]
    for run in runs:
        last = run["epochs"][-1]
        lines.append(
            f"{run['ranks']:5d}  {run['step_ms']:12.1f}  {run['samples_per_s']:9,.0f}  {last['loss']:6.4f}"
            f"  {last['accuracy']:8.1%}  {runs[0]['step_ms'] / run['step_ms']:7.2f}x"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The same training on 1 and on 2 ranks, compared.")
    add = parser.add_argument
    add("--out", type=Path, default=OUT, metavar="DIR", help="where results go; default: %(default)s")
    add("--epochs", type=int, default=4)
    add("--samples", type=int, default=16384)
    add("--width", type=int, default=1280, help="of the hidden layers; the default makes 3.3 million parameters")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    threads = max(1, len(os.sched_getaffinity(0)) // MOST_RANKS)
    work = ["--global-batch", "512", "--epochs", str(options.epochs), "--samples", str(options.samples)]
    work += ["--width", str(options.width)]
    runs = [launch(ranks, threads, options.out, work) for ranks in (1, MOST_RANKS)]

    first = runs[0]
    print(
        f"\nThe same {first['steps']} steps of {first['global_batch']} samples, {first['parameters']:,} parameters, "
        f"{threads} thread(s) a rank:\n\n{table(runs)}\n\n"
        f"What every rank did and when: {timeline(options.out, MOST_RANKS)}\n"
        "Open it at https://ui.perfetto.dev (Open trace file) or in chrome://tracing (Load)."
    )


if __name__ == "__main__":
    main()
