"""FedAvg: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data* (AISTATS
2017).
"""

from dataclasses import dataclass

from fullrank.methods._method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Each client minimises its own loss; the server takes the mean of their weights, by sample counts."""

    paper = "McMahan et al., AISTATS 2017"
