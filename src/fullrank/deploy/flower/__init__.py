"""Federations on Flower: the server and the sites of `deploy.sites` behind a `ServerApp` and a `ClientApp`.

`new` writes the folder of an app and needs no Flower. The rest needs the extra: `pip install 'fullrank[flower]'`.
"""

from fullrank.deploy.flower.apps import client_app, server_app
from fullrank.deploy.flower.new import write_app

__all__ = ["client_app", "server_app", "write_app"]
