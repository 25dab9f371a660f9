"""FedBN."""

from dataclasses import dataclass

from fullrank.methods._method import Method


@dataclass(frozen=True)
class FedBN(Method):
    """Every normalisation layer stays at its client, affine weights and statistics alike; all else is averaged.

    Layers are found by their type, so those in shortcuts count too. There is no complete global model: a client's is
    evaluated on its own data. Norm layers stay with their client.
    """

    paper = "Li et al., ICLR 2021"
    sends = "weights but for those of norm layers, the number of samples; no statistics"
    keeps = "its norm layers: weights and statistics"
    personal = ("norm",)
