"""Run a benchmark as CANDLE's Supervisor does: one training for every line of an unrolled parameter file.

    printf '%s\n' '{"dropout": 0.1}' '{"dropout": 0.3, "batch_size": 40}' > upf.txt
    python examples/candle_supervisor.py --upf upf.txt
    farandole launch -n 2 -- python examples/candle_supervisor.py --upf upf.txt     # each training on two ranks

The Supervisor itself needs no such script: MODEL_PYTHON_SCRIPT=farandole.candle.nt3 names what is imported here.
"""

import argparse
import importlib
import json
import os
from pathlib import Path

import farandole

# Of two lines, where no file is given.
LINES = ['{"dropout": 0.1}', '{"dropout": 0.3, "batch_size": 40}']


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upf", type=Path, metavar="FILE", help="a JSON dictionary of hyper-parameters in each line")
    parser.add_argument("--model", default=os.environ.get("MODEL_PYTHON_SCRIPT", "farandole.candle.nt3"))
    parser.add_argument("--objective", default="val_loss", help="which value of the history counts, of the last epoch")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    package = importlib.import_module(options.model)
    lines = options.upf.read_text().splitlines() if options.upf else LINES
    found = []
    for number, line in enumerate(lines):
        parameters = package.initialize_parameters(preset="test", epochs=options.epochs)
        parameters |= {"experiment_id": "upf", "run_id": f"run_{number:03}", **json.loads(line)}
        history = package.run(parameters)
        found.append(history.history[options.objective][-1])
    if farandole.rank() == 0:
        for line, value in zip(lines, found):
            print(f"{options.objective} {value:.4f}  {line}")


if __name__ == "__main__":
    main()
