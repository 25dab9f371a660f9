"""The `ServerApp` and the `ClientApp` of an app, for code that may run where Flower is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fullrank.errors import InputError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp


def server_app(*arguments: Any, **keys: Any) -> ServerApp:
    """Return the `ServerApp` of an app; `server.server_app` describes the arguments.

    Raises:
        InputError: If Flower is not installed; the message names the extra to install.
    """
    try:
        from fullrank.deploy.flower.server import server_app as make
    except ModuleNotFoundError as error:
        raise _absent(error) from error
    return make(*arguments, **keys)


def client_app(*arguments: Any, **keys: Any) -> ClientApp:
    """Return the `ClientApp` of an app; `client.client_app` describes the arguments.

    Raises:
        InputError: If Flower is not installed; the message names the extra to install.
    """
    try:
        from fullrank.deploy.flower.client import client_app as make
    except ModuleNotFoundError as error:
        raise _absent(error) from error
    return make(*arguments, **keys)


def _absent(error: ModuleNotFoundError) -> Exception:
    """Return the error that names the extra if it is Flower that is missing, otherwise the same error."""
    if (error.name or "").partition(".")[0] != "flwr":
        return error
    return InputError("a deployment needs Flower: pip install 'fullrank[flower]'")
