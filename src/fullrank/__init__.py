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
from .export import export, load_export
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
