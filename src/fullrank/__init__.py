"""fullrank: federated learning when clients' data differ.

One call runs an experiment (`fullrank.run`), another trains your own module on your own clients (`fullrank.fit`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from fullrank._version import __version__

if TYPE_CHECKING:
    from fullrank import collapse, data, methods, models, objectives, testing, theory
    from fullrank.channels import Mean, Sum
    from fullrank.comparison.compare import compare
    from fullrank.comparison.parallel import ComparisonCallback
    from fullrank.comparison.sweep import Sweep, sweep
    from fullrank.comparison.table import Comparison, compare_runs
    from fullrank.config.experiment import Experiment
    from fullrank.deploy.export import export, load_export
    from fullrank.errors import Conflict, FullrankError
    from fullrank.federated.aggregation import Aggregator
    from fullrank.federated.views import ServerView as Server
    from fullrank.local.views import ClientView as Client
    from fullrank.methods import Batch, Method
    from fullrank.runs.callbacks import Callback
    from fullrank.runs.fit import fit
    from fullrank.runs.result import Run, load_run
    from fullrank.runs.run import run

__all__ = [
    "Aggregator",
    "Batch",
    "Callback",
    "Client",
    "Comparison",
    "ComparisonCallback",
    "Conflict",
    "Experiment",
    "FullrankError",
    "Mean",
    "Method",
    "Run",
    "Server",
    "Sum",
    "Sweep",
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
    "sweep",
    "testing",
    "theory",
    "write_report",
]

_MODULES = {
    "fullrank.channels": ("Mean", "Sum"),
    "fullrank.comparison.compare": ("compare",),
    "fullrank.comparison.parallel": ("ComparisonCallback",),
    "fullrank.comparison.sweep": ("Sweep", "sweep"),
    "fullrank.report.page.build": ("write_report",),
    "fullrank.comparison.table": ("Comparison", "compare_runs"),
    "fullrank.config.experiment": ("Experiment",),
    "fullrank.deploy.export": ("export", "load_export"),
    "fullrank.errors": ("Conflict", "FullrankError"),
    "fullrank.federated.aggregation": ("Aggregator",),
    "fullrank.federated.views": ("Server",),
    "fullrank.local.views": ("Client",),
    "fullrank.methods": ("Batch", "Method"),
    "fullrank.runs.callbacks": ("Callback",),
    "fullrank.runs.fit": ("fit",),
    "fullrank.runs.result": ("Run", "load_run"),
    "fullrank.runs.run": ("run",),
}
_NAME_THERE = {"Client": "ClientView", "Server": "ServerView"}
"""The names of classes in their modules, where other classes have the public name."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name or a subpackage when it is first used, because importing torch takes over a second."""
    if name in _MODULE_OF:
        found = getattr(importlib.import_module(_MODULE_OF[name]), _NAME_THERE.get(name, name))
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        try:
            found = importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that are imported already and those that can be."""
    return sorted({*globals(), *__all__})
