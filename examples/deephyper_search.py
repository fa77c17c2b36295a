"""Search NT3's dropout, learning rate and dense layer with DeepHyper (pip install deephyper).

    python examples/deephyper_search.py --evaluations 5
"""

import argparse
from typing import Any

from deephyper.evaluator import Evaluator
from deephyper.hpo import CBO, HpProblem

from farandole.candle import nt3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--log-dir", default="out/deephyper", metavar="DIR", help="where DeepHyper keeps its results")
    options = parser.parse_args()

    problem = HpProblem()
    problem.add_hyperparameter((0.0, 0.4), "dropout")
    problem.add_hyperparameter((1e-4, 1e-2, "log-uniform"), "learning_rate")
    problem.add_hyperparameter((50, 200), "dense")

    # A coroutine is evaluated here, in the process and the thread that has the ranks.
    async def score(job: Any) -> float:
        return nt3.objective({"preset": "test", "epochs": options.epochs, **job.parameters})

    search = CBO(problem, random_state=0, log_dir=options.log_dir)
    results = search.search(Evaluator.create(score, method="serial"), max_evals=options.evaluations)
    best = results.loc[results["objective"].astype(float).idxmax()]
    chosen = {name.removeprefix("p:"): best[name] for name in results.columns if name.startswith("p:")}
    print(f"best validation accuracy {float(best['objective']):.3f} with {chosen}")


if __name__ == "__main__":
    main()
