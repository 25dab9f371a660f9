"""The losses, as pure functions of tensors that any training loop can use.

They take no clients, rounds or models. Each is differentiable and branches on shapes only, never on data, so the same
code runs eagerly, under `torch.func.vmap` and `torch.func.grad`, and traced.
"""

from typing import TYPE_CHECKING

from fullrank.lazy import exports

if TYPE_CHECKING:
    from fullrank.objectives.balanced import balanced_cross_entropy
    from fullrank.objectives.contrast import contrastive
    from fullrank.objectives.correlation import decorrelation, singular_variance
    from fullrank.objectives.covariance import decov, structured_decov
    from fullrank.objectives.etf import simplex_etf
    from fullrank.objectives.intraclass import intra_class_decorrelation
    from fullrank.objectives.margin import prototype_margin, prototype_margin_literal, prototype_pull
    from fullrank.objectives.prototypes import class_prototypes
    from fullrank.objectives.proximity import proximal

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
# No module has the name of a function of another one: importing the module would replace the function.
__getattr__ = exports(
    __name__,
    {
        "fullrank.objectives.balanced": ("balanced_cross_entropy",),
        "fullrank.objectives.contrast": ("contrastive",),
        "fullrank.objectives.correlation": ("decorrelation", "singular_variance"),
        "fullrank.objectives.covariance": ("decov", "structured_decov"),
        "fullrank.objectives.etf": ("simplex_etf",),
        "fullrank.objectives.intraclass": ("intra_class_decorrelation",),
        "fullrank.objectives.margin": ("prototype_margin", "prototype_margin_literal", "prototype_pull"),
        "fullrank.objectives.prototypes": ("class_prototypes",),
        "fullrank.objectives.proximity": ("proximal",),
    },
)
