"""Runs all checks of a method, and reports the first that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from fullrank import methods
from fullrank.engine.machine import threads
from fullrank.errors import ClientFailed
from fullrank.methods import Method
from fullrank.testing.exchanging import check_exchange, check_uploads
from fullrank.testing.results import Checked, CheckFailed
from fullrank.testing.resuming import check_checksums, check_resume
from fullrank.testing.training import (
    check_degenerate,
    check_engines,
    check_head,
    check_processes,
    check_trace,
    check_writes,
)
from fullrank.testing.trial import Trial

CHECKS: dict[str, Callable[[Trial], str]] = {
    "writes": check_writes,
    "degenerate": check_degenerate,
    "trace": check_trace,
    "engines": check_engines,
    "processes": check_processes,
    "resume": check_resume,
    "checksums": check_checksums,
    "exchange": check_exchange,
    "uploads": check_uploads,
    "head": check_head,
}
"""The checks by their names, in the order in which they run."""


def check(
    method: Method | str,
    *,
    only: Sequence[str] = tuple(CHECKS),
    module: nn.Module | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Checked:
    """Run a method through all checks.

    - `writes`: it does not write into tensors that it receives.
    - `degenerate`: at its `neutral` values it is FedAvg, to the bit.
    - `trace`: its step can be traced and mapped over clients.
    - `engines`: recorded steps, and steps of a group of clients, give the result of `serial`.
    - `processes`: worker processes give it to the bit.
    - `resume`: a run that was stopped and resumed ends like one that was not, with clients that train one by one and as
      a group (`vectorised`).
    - `checksums`: damage to any tensor that the method left on disk is noticed.
    - `exchange`: uploads have the same names and shapes in every round, and nothing personal is exchanged.
    - `uploads`: the method declares everything that its clients send besides the model.
    - `head`: it works with a module whose classifier has another name than that of the library's networks, unless the
      method asks for a network (`tried_on`).

    Args:
        method: An instance of the method, or a name as for `fullrank.methods.build`.
        only: The names of the checks to run; by default all.
        module: A model to train in place of a small convolutional network.
        settings: Further keys of the experiment, nested or dotted.

    Returns:
        The result of each check, and what the method exchanges.

    Raises:
        CheckFailed: If a check fails; the first that fails ends the call.
        InputError: If the method is rejected.
        ValueError: If there is no such check.

    >>> from fullrank.testing import check
    >>> print(check("fedprox", only=["degenerate"]).results)
    {'degenerate': 'holds'}
    """
    methods.reject_no_method(method)
    built = methods.build(method) if isinstance(method, str) else method
    methods.reject_undeclared(built)
    trial = Trial(built, module, settings or {})
    if unknown := [name for name in only if name not in CHECKS]:
        raise ValueError(f'there is no check "{unknown[0]}"; choose from {", ".join(CHECKS)}')
    done = Checked(built.name)
    with threads(1):
        for name in only:
            try:
                done.results[name] = CHECKS[name](trial)
            except ClientFailed as failure:
                raise CheckFailed(f'"{built.name}" cannot run on the small federation: {failure}') from failure
    done.exchange = trial.exchange
    return done
