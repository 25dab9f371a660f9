"""The `ClientApp`: a site behind a SuperNode."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flwr.app
from flwr.app import Context
from flwr.clientapp import ClientApp

from fullrank.data.sources.places import user_cache
from fullrank.deploy.flower.records import from_records, to_records
from fullrank.deploy.sites.host import Host, Load
from fullrank.deploy.sites.message import Message
from fullrank.deploy.sites.samples import load_site
from fullrank.deploy.sites.settings import SiteSettings
from fullrank.errors import InputError, kind_of
from fullrank.federated.codec import BadMessage

SITE = "site"
"""The key of a SuperNode's configuration with the path of its `site.toml`."""
VARIABLE = "FULLRANK_SITE"
"""The environment variable with that path, where the key is not given."""
ACTORS = "flwr.simulation.ray_transport.ray_actor"
"""The module of the processes in which Flower's simulation runs clients."""

_hosts: dict[tuple[str, int, int], Host] = {}


SINGLE = "accepts one ArrayRecord in each direction with equal names, and fullrank's messages have several"
UNFIT = {
    "fixedclipping_mod": SINGLE,
    "adaptiveclipping_mod": SINGLE,
    "LocalDpMod": SINGLE,
    "secagg_mod": "needs Flower's earlier interface and its own workflow at the server",
    "secaggplus_mod": "needs Flower's earlier interface and its own workflow at the server",
}
"""Flower's mods that do not fit, with the reasons."""


def client_app(load: Load = load_site, mods: Sequence[Any] = ()) -> ClientApp:
    """Return the `ClientApp` of an app.

    The path of `site.toml` is the value of `site` in the configuration of the SuperNode (`--node-config`) or of the
    environment variable FULLRANK_SITE. A SuperNode without either takes no part: it rejects every request, and neither
    reads nor imports anything for it. In Flower's simulation, where no site has such a file, each client has the part
    of the experiment's own data that `partition-id` names.

    Args:
        load: Loads the samples of a site, in place of `load_site`.
        mods: Flower's mods, which see each message before and after the app.

    Raises:
        InputError: If a mod cannot work with fullrank's messages; the message has the reason.
    """
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in UNFIT:
            raise InputError(f'the mod "{name}" cannot be used: it {UNFIT[name]}')

    def answer(message: flwr.app.Message, context: Context) -> flwr.app.Message:
        return _answer(message, context, load)

    app = ClientApp(mods=[*mods])
    app.query()(answer)  # whether the site joins
    app.train()(answer)  # a job
    return app


def _answer(message: flwr.app.Message, context: Context, load: Load) -> flwr.app.Message:
    try:
        content = to_records(host_of(context.node_config, load).answer(from_records(message.content)))
    except BadMessage as problem:
        content = to_records(_rejection(f"cannot read a request: {problem}"))
    except InputError as problem:
        content = to_records(_rejection(f"cannot take part: {problem}"))
    except Exception as error:  # whose message, which can quote data, Flower would send to the server
        traceback.print_exception(error)
        content = to_records(_rejection(f"cannot take part: its code raised {kind_of(error)}"))
    return flwr.app.Message(content=content, reply_to=message)


def _rejection(reason: str) -> Message:
    """Return a rejection of a site that has no log for it, and print the reason for the site's own operator."""
    print(f"fullrank: this site {reason}", file=sys.stderr, flush=True)
    return Message({"kind": "rejected", "reason": reason})


def host_of(config: Mapping[str, Any], load: Load = load_site) -> Host:
    """Return the site of a SuperNode's configuration; one process keeps it as long as its `site.toml` is the same.

    Args:
        config: The configuration of the SuperNode.
        load: Loads the samples, in place of `load_site`.

    Raises:
        InputError: If no `site.toml` is named and this is no simulation, or if the file cannot be used.
    """
    named = str(config.get(SITE, "") or os.environ.get(VARIABLE, ""))
    if not named and not in_simulation():
        raise InputError(
            "its SuperNode was started without a site.toml, which says what data the site has and what it allows; at "
            f"the site, start it with --node-config '{SITE}=\"/path/of/site.toml\"', or set {VARIABLE} to that path"
        )
    part = config.get("partition-id", -1)
    number = int(part) if isinstance(part, (int, str)) and str(part).lstrip("-").isdecimal() else -1
    changed = Path(named).stat().st_mtime_ns if named and Path(named).is_file() else 0
    key = (named, number, changed)
    if key not in _hosts:
        if named:
            settings = SiteSettings.from_toml(named)
        else:
            settings = SiteSettings().within(user_cache() / "flower" / f"partition-{number}")
        _hosts[key] = Host(settings, [number] if number >= 0 else [], load)
    return _hosts[key]


def in_simulation() -> bool:
    """Return whether this process runs clients of Flower's simulation.

    The simulation runs them in actors of Ray. A SuperNode runs an app in a process of the command `flwr-clientapp`,
    which is none, whatever its configuration and the server's messages say. On doubt, the process is a SuperNode's.
    """
    ray = sys.modules.get("ray")
    if ray is None or ACTORS not in sys.modules:
        return False
    try:
        return bool(ray.is_initialized() and ray.get_runtime_context().get_actor_id())
    except Exception:
        return False
