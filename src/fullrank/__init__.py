"""fullrank: federated learning when clients' data differ.

One call runs an experiment (`fullrank.run`), another trains your own module on your own clients (`fullrank.fit`).
"""

__version__ = "0.1.0"

import importlib
from typing import Any

from . import data, methods, models, objectives
from .channels import Mean, Sum
from .compare import compare
from .comparison import Comparison, compare_runs
from .config import Experiment
from .errors import Conflict
from .fit import fit
from .methods import Method
from .result import Run, load_run
from .run import run

__all__ = [
    "Comparison",
    "Conflict",
    "Experiment",
    "Mean",
    "Method",
    "Run",
    "Sum",
    "compare",
    "compare_runs",
    "data",
    "fit",
    "load_run",
    "methods",
    "models",
    "objectives",
    "run",
    "testing",
]


def __getattr__(name: str) -> Any:
    """`fullrank.testing` when it is asked for: it needs torch's tracer, which takes its time to load."""
    if name == "testing":
        return importlib.import_module(".testing", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
