"""The `ServerApp`: it runs the experiment of an app at the SuperNodes of a federation."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fullrank.config.experiment import Experiment
from fullrank.data import Split
from fullrank.deploy.flower.channel import GridChannel
from fullrank.deploy.sites.serve import DEFAULT_TIMEOUT, serve
from fullrank.errors import FullrankError, InputError
from fullrank.runs import display
from fullrank.runs.result import Run

TestSet = Callable[[Experiment], "Split | None"]
"""A function that returns a test set at the server for an experiment, or None."""


def server_app(folder: str | Path, test: TestSet | None = None) -> ServerApp:
    """Return the `ServerApp` of an app.

    It reads the run configuration of the app: `experiment`, the name of a file in the folder; `set`, overrides such as
    "train.rounds=5 method.name=scaffold"; `out`, the run directory; `wait`, the number of seconds within which the
    sites must join; `patience`, the number of seconds within which a site that was lost must be back.

    Args:
        folder: The folder of the app, which has the experiment.
        test: Returns a test set at the server.
    """

    def main(grid: Grid, context: Context) -> None:
        run_app(grid, context.run_config, Path(folder), test)

    app = ServerApp()
    app.main()(main)
    return app


def run_app(grid: Grid, config: Mapping[str, Any], folder: Path, test: TestSet | None = None) -> Run:
    """Run the experiment that a run configuration names, as `server_app` describes it.

    Args:
        grid: The grid of the `ServerApp`.
        config: The run configuration.
        folder: The folder of the app.
        test: Returns a test set at the server.

    Returns:
        The complete run.

    Raises:
        InputError: If the configuration lacks a key, or has an invalid value.
    """
    try:
        experiment = Experiment.from_toml(folder / str(config["experiment"]), shlex.split(str(config.get("set", ""))))
        out = Path(str(config["out"])).expanduser()
        if not str(config["out"]) or not out.is_absolute():
            raise InputError(f'out = "{config["out"]}" in the run configuration: give the full path of a run directory')
        timeout = experiment.run.client_timeout or DEFAULT_TIMEOUT
        wait, patience = float(config.get("wait", 600)), float(config.get("patience", 60))
        channel = GridChannel(grid, keep=2 * max(timeout, wait) + patience)
        shown = display.choose(False, False)
        own = test(experiment) if test is not None else None
        run = serve(experiment, channel, out, wait=wait, patience=patience, test=own, callbacks=[shown], say=_say)
    except KeyError as missing:
        raise InputError(f"the run configuration of the app lacks {missing}; see pyproject.toml") from None
    except FullrankError as problem:
        _say(str(problem))
        raise
    rounds = len(run.metrics)
    _say(f"{rounds} {'round is' if rounds == 1 else 'rounds are'} complete; the results are in {out}")
    return run


def _say(text: str) -> None:
    print(f"fullrank: {text}", flush=True)
