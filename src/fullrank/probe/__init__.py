"""Looks at the representation during a run: what a round made of the global model and of some clients' models.

A probe changes nothing that the run computes. Its numbers lie in a file of their own beside the run's metrics.
"""

from fullrank.probe.files import read_probes
from fullrank.probe.model_probe import ModelProbe
from fullrank.probe.prober import Prober

__all__ = ["ModelProbe", "Prober", "read_probes"]
