"""The losses, as pure functions of tensors that any training loop can use.

They take no clients, rounds or models. Each is differentiable and branches on shapes only, never on data, so the same
code runs eagerly, under `torch.func.vmap` and `torch.func.grad`, and traced.
"""

from fullrank.objectives.balanced import balanced_cross_entropy
from fullrank.objectives.contrastive import contrastive
from fullrank.objectives.decorrelation import decorrelation, singular_variance
from fullrank.objectives.decov import decov, structured_decov
from fullrank.objectives.etf import simplex_etf
from fullrank.objectives.intraclass import intra_class_decorrelation
from fullrank.objectives.margin import prototype_margin, prototype_margin_literal, prototype_pull
from fullrank.objectives.prototypes import class_prototypes
from fullrank.objectives.proximal import proximal

__all__ = [
    "balanced_cross_entropy",
    "class_prototypes",
    "contrastive",
    "decorrelation",
    "decov",
    "intra_class_decorrelation",
    "prototype_margin",
    "prototype_margin_literal",
    "prototype_pull",
    "proximal",
    "simplex_etf",
    "singular_variance",
    "structured_decov",
]
