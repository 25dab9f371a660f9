"""fullrank: federated learning when clients' data differ.

One call runs an experiment (`fullrank.run`), another trains your own module on your own clients (`fullrank.fit`).
"""

from typing import TYPE_CHECKING

from fullrank._version import __version__
from fullrank.lazy import exports

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

__getattr__ = exports(
    __name__,
    {
        "fullrank.channels": ("Mean", "Sum"),
        "fullrank.comparison.compare": ("compare",),
        "fullrank.comparison.parallel": ("ComparisonCallback",),
        "fullrank.comparison.sweep": ("Sweep", "sweep"),
        "fullrank.comparison.table": ("Comparison", "compare_runs"),
        "fullrank.config.experiment": ("Experiment",),
        "fullrank.deploy.export": ("export", "load_export"),
        "fullrank.errors": ("Conflict", "FullrankError"),
        "fullrank.federated.aggregation": ("Aggregator",),
        "fullrank.federated.views": ("Server",),
        "fullrank.local.views": ("Client",),
        "fullrank.methods": ("Batch", "Method"),
        "fullrank.report.page.build": ("write_report",),
        "fullrank.runs.callbacks": ("Callback",),
        "fullrank.runs.fit": ("fit",),
        "fullrank.runs.result": ("Run", "load_run"),
        "fullrank.runs.run": ("run",),
    },
    {"Client": "ClientView", "Server": "ServerView"},
)


def __dir__() -> list[str]:
    """Return the names that are imported already and those that can be."""
    return sorted({*globals(), *__all__})
