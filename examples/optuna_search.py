"""Search NT3's dropout and learning rate with Optuna (pip install optuna).

    python examples/optuna_search.py --trials 5
"""

import argparse

import optuna

from farandole.candle import nt3
from farandole.errors import TrainingError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    def score(trial: optuna.Trial) -> float:
        config = {
            "dropout": trial.suggest_float("dropout", 0.0, 0.4),
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        }
        return nt3.objective({"preset": "test", "epochs": options.epochs, **config})

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(score, n_trials=options.trials, catch=(TrainingError,))  # of rates that are too high
    print(f"best validation accuracy {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
