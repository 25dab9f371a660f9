"""The result of the checks of a method."""

from __future__ import annotations

import dataclasses


class CheckFailed(AssertionError):
    """Raised if a method does not have a property that it must have.

    >>> from fullrank import Method
    >>> from fullrank.testing import check
    >>> class InPlace(Method):
    ...     def after(self, client):
    ...         client.w0["head.bias"].add_(1)
    ...         return {}
    >>> try:
    ...     check(InPlace(), only=["writes"])
    ... except CheckFailed as error:
    ...     print(str(error).partition(";")[0])
    the method "inplace" wrote into a tensor that it received (w0, sent, own …) in place
    """


@dataclasses.dataclass
class Checked:
    """The results of the checks of a method, which `print` lists.

    >>> from fullrank.testing import check
    >>> print(check("fedprox", only=["degenerate"]))
    fedprox:
    degenerate   holds
    """

    method: str
    results: dict[str, str] = dataclasses.field(default_factory=dict)
    exchange: dict[str, int] = dataclasses.field(default_factory=dict)
    """The numbers exchanged with one client (down at first contact, down later, and up), and with all at the end."""

    def __str__(self) -> str:
        lines = [f"{name:<12} {result}" for name, result in self.results.items()]
        exchanged = [f"{'exchanged':<12} {self.exchange}"] if self.exchange else []
        return "\n".join([f"{self.method}:", *lines, *exchanged])
