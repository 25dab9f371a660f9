"""The `ServerApp` and the `ClientApp` of an app, for code that may run where Flower is not installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.config.experiment import Experiment
from fullrank.errors import InputError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp


def server_app(folder: str | Path, test: Callable[[Experiment], Any] | None = None) -> ServerApp:
    """Return the `ServerApp` of an app.

    Its run configuration is that of the app: `experiment`, `set`, `out`, `wait` and `patience`.

    Args:
        folder: The folder of the app, which has the experiment.
        test: Returns a test set at the server.

    Returns:
        The `ServerApp`, which runs the experiment at the sites that join.

    Raises:
        InputError: If Flower is not installed; the message names the extra to install.
    """
    try:
        from fullrank.deploy.flower.server import server_app as make
    except ModuleNotFoundError as error:
        raise _absent(error) from error
    return make(folder, test)


def client_app(load: Callable[..., Any] | None = None, mods: Sequence[Any] = ()) -> ClientApp:
    """Return the `ClientApp` of an app.

    Args:
        load: Loads the samples of a site. By default they are those that its `site.toml` names.
        mods: Flower's mods, which see each message before and after the app.

    Returns:
        The `ClientApp`, which does the jobs that the site's `site.toml` allows.

    Raises:
        InputError: If Flower is not installed, or if a mod cannot work with fullrank's messages.
    """
    try:
        from fullrank.deploy.flower.client import client_app as make
    except ModuleNotFoundError as error:
        raise _absent(error) from error
    return make(mods=mods) if load is None else make(load, mods)


def _absent(error: ModuleNotFoundError) -> Exception:
    """Return the error that names the extra if it is Flower that is missing, otherwise the same error."""
    if (error.name or "").partition(".")[0] != "flwr":
        return error
    return InputError("a deployment needs Flower: pip install 'fullrank[flower]'")
