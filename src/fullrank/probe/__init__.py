"""Measurements of representations during a run: of the global model after a round, and of some clients' models.

A probe changes nothing that the run computes. Its results are written to separate files next to the run's metrics.
"""

from fullrank.probe.files import read_probes
from fullrank.probe.model_probe import ModelProbe

__all__ = ["ModelProbe", "read_probes"]
