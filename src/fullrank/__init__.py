"""fullrank: federated learning when clients' data differ.

One call runs an experiment (`fullrank.run`), another trains your own module on your own clients (`fullrank.fit`).
"""

import importlib
from typing import Any

from fullrank import data, methods, models, objectives
from fullrank._version import __version__
from fullrank.channels import Mean, Sum
from fullrank.comparison.compare import compare
from fullrank.comparison.parallel import ComparisonCallback
from fullrank.comparison.table import Comparison, compare_runs
from fullrank.config.experiment import Experiment
from fullrank.deploy.export import export, load_export
from fullrank.errors import Conflict, FullrankError
from fullrank.federated.aggregation import Aggregator
from fullrank.methods import Method
from fullrank.runs.callbacks import Callback
from fullrank.runs.fit import fit
from fullrank.runs.result import Run, load_run
from fullrank.runs.run import run

__all__ = [
    "Aggregator",
    "Callback",
    "Comparison",
    "ComparisonCallback",
    "Conflict",
    "Experiment",
    "FullrankError",
    "Mean",
    "Method",
    "Run",
    "Sum",
    "__version__",
    "collapse",
    "compare",
    "compare_runs",
    "data",
    "export",
    "fit",
    "load_export",
    "load_run",
    "methods",
    "models",
    "objectives",
    "run",
    "testing",
    "theory",
]


def __getattr__(name: str) -> Any:
    """Modules that few programs need, when they are asked for; testing needs torch's tracer, which is slow to load."""
    if name in ("collapse", "testing", "theory"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
