"""P1B1 as CANDLE's supervisors, Optuna and DeepHyper call it: see farandole.train.supervisors."""

from farandole.train.supervisors import supervised

__all__ = ["initialize_parameters", "objective", "run"]

initialize_parameters, run, objective = supervised("p1b1")
