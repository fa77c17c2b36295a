"""Workloads: what `farandole run` trains. Ours are packages in here, yours a file, a module or an entry point.

    from farandole.workloads import Parameters, TorchModel, Workload, option, split
    WORKLOAD = Workload(name="mine", parameters=Mine, load=load, torch=TorchModel(build=build, loss=loss))

`farandole run --new my_model.py` writes one to begin with; docs/workloads.md tells the rest.
"""

from farandole.workloads.finding import find_workload, workload_names
from farandole.workloads.parameters import Parameters, option
from farandole.workloads.samples import ArraySamples, DatasetSamples, Stream, TrainingData, split
from farandole.workloads.workload import KerasModel, TorchModel, Workload

__all__ = [
    "ArraySamples", "DatasetSamples", "KerasModel", "Parameters", "Stream", "TorchModel", "TrainingData", "Workload",
    "find_workload", "option", "split", "workload_names",
]  # fmt: skip
