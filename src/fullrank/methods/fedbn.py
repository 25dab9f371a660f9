"""FedBN: Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization* (ICLR 2021)."""

from dataclasses import dataclass

from fullrank.methods._method import Method


@dataclass(frozen=True)
class FedBN(Method):
    """Every normalisation layer, with affine weights and statistics, is personal; all other entries are averaged.

    Layers are found by their type, so those in shortcuts are personal as well. There is no complete global model; each
    client's model is evaluated on its own data.
    """

    paper = "Li et al., ICLR 2021"
    sends = "weights but for those of norm layers, the number of samples; no statistics"
    keeps = "its norm layers: weights and statistics"
    personal = ("norm",)
