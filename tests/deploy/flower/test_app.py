"""An app of `fullrank flower new` gives the weights of a simulation in Flower's simulation and in a deployment."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import fullrank
from deployments import same_weights
from flower_deployment import deployed, environment, until
from fullrank.config.experiment import Experiment
from fullrank.deploy.flower.new import write_app
from fullrank.files import read_json, read_lines

QUICK = ["train.rounds=2", "model.width=4", "model.features=16", "data.share=0.3", "train.steps=3"]
"""Overrides that make a run short."""
METHODS = {
    "fedavg": [],
    "fedprox+feddecorr": [],
    "scaffold": [],
    "fedmr": [],
    "fedetf": [],
    "fedbn": ["model.norm=batch"],
    "fedrepopt": ["model.norm=batch"],
}


def overrides_of(method):
    """The overrides of a run with a method, on the network that the method needs."""
    wanted = dict(getattr(fullrank.methods.available().get(method), "tried_on", {}))
    options = [f"model.{key}={as_toml(value)}" for key, value in wanted.items()]
    shared = [pair for pair in QUICK if not (wanted and pair.startswith("model."))]
    return [*shared, f"method.name={method}", *(options or METHODS.get(method, []))]


def as_toml(value):
    """A value without spaces, as a run configuration takes it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def simulated(app, out, overrides):
    """The same experiment in the engine `serial`."""
    experiment = Experiment.from_toml(app / "experiment.toml", overrides)
    return fullrank.run(experiment.but(engine={"name": "serial"}), out)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apps") / "sites"
    write_app(folder, "scaffold", 2)
    return folder


def test_scaffold_in_a_deployment_with_tls_is_a_simulation_to_the_bit(tmp_path, app):
    overrides = [*overrides_of("scaffold"), "data.holdout=0"]  # no evaluation: each message starts a process
    with deployed(tmp_path / "net", 2) as net:
        assert net.run(app, tmp_path / "out", overrides, seconds=200) == "finished:completed", net.log
    run = simulated(app, tmp_path / "ref", overrides)
    assert same_weights(tmp_path / "out", tmp_path / "ref")
    found = fullrank.load_run(tmp_path / "out")
    assert [row["clients"] for row in found.metrics] == [row["clients"] for row in run.metrics]
    assert "round 2/2" in net.log, "an operator sees the rounds"
    for site in range(2):
        states = list((tmp_path / "net" / f"state{site}").rglob("client-*/*.safetensors"))
        assert states, "the states are at the sites"
    assert not list((tmp_path / "out").rglob("clients-*.safetensors")) or all(
        file.stat().st_size < 5000 for file in (tmp_path / "out").rglob("clients-*.safetensors")
    ), "and the server has receipts only"


def simulation(folder, app, out, overrides, seconds=180):
    """Run an app in Flower's simulation, and return what it printed."""
    config = f'set="{" ".join(overrides)}" out="{out}"'
    command = ["flwr", "run", str(app), "--stream", "--federation-config", "num-supernodes=2", "--run-config", config]
    (folder / "home").mkdir(exist_ok=True, parents=True)
    done = subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


@pytest.fixture
def simulator(tmp_path):
    """A folder for Flower's simulation; the SuperLink that `flwr run` leaves behind is ended."""
    pytest.importorskip("ray")
    yield tmp_path / "flower"
    for found in Path("/proc").glob("[0-9]*/environ"):
        try:
            ours = f"FLWR_HOME={tmp_path / 'flower' / 'home'}".encode() in found.read_bytes()
            if ours and int(found.parent.name) != os.getpid():
                os.kill(int(found.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def test_scaffold_in_flowers_simulation_is_a_simulation_to_the_bit(tmp_path, app, simulator):
    overrides = overrides_of("scaffold")
    printed = simulation(simulator, app, tmp_path / "out", overrides)
    simulated(app, tmp_path / "ref", overrides)
    assert (tmp_path / "out" / "summary.json").is_file(), printed
    assert same_weights(tmp_path / "out", tmp_path / "ref")


@pytest.mark.slow
def test_every_method_in_a_deployment_and_in_flowers_simulation(tmp_path, app, simulator):
    with deployed(tmp_path / "net", 2) as net:  # one SuperLink serves all runs
        for method in METHODS:
            out = tmp_path / f"deployed-{method}"
            assert net.run(app, out, overrides_of(method), seconds=300) == "finished:completed", net.log[-3000:]
    for method in METHODS:
        overrides = overrides_of(method)
        printed = simulation(simulator, app, tmp_path / f"flower-{method}", overrides, seconds=400)
        simulated(app, tmp_path / f"ref-{method}", overrides)
        assert (tmp_path / f"flower-{method}" / "summary.json").is_file(), printed[-3000:]
        for kind in ("deployed", "flower"):
            assert same_weights(tmp_path / f"{kind}-{method}", tmp_path / f"ref-{method}"), f"{kind}: {method}"


@pytest.mark.slow
def test_a_supernode_is_killed_and_another_never_registered(tmp_path, app):
    overrides = [*overrides_of("scaffold"), "train.rounds=4", "run.min_clients=1", "run.client_timeout=120"]
    with deployed(tmp_path / "net", 2) as net:
        net.begin(app, tmp_path / "out", overrides, patience=5)
        metrics = tmp_path / "out" / "metrics.jsonl"
        until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) >= 1, 120, "the first round")
        net.stop("site1")
        assert net.finish(240) == "finished:completed", net.log[-3000:]
        rows = list(read_lines(metrics))
        assert len(rows) == 4
        reasons = [reason for row in rows for reason in row.get("skipped", {}).values()]
        assert reasons
        assert "(node " in reasons[0] or "the node" in reasons[0]
        # A key that nobody registered is not let in.
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "site9"],
            cwd=net.folder,
            check=True,
            timeout=60,
        )
        net.start_node(9)
        stranger = net.processes["site9"]
        until(lambda: stranger.poll() is not None, 60, "the end of the stranger")
        assert stranger.returncode != 0


@pytest.mark.slow
def test_a_superlink_that_was_killed_continues_at_the_checkpoint(tmp_path, app):
    overrides = [*overrides_of("scaffold"), "train.rounds=4"]
    with deployed(tmp_path / "net", 2) as net:
        net.begin(app, tmp_path / "out", overrides)
        metrics = tmp_path / "out" / "metrics.jsonl"
        until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) >= 2, 180, "two rounds")
        net.stop("superlink")
        net.stop("run")
        before = len(list(read_lines(metrics)))
        assert before < 4
        net.start_link()
        assert net.run(app, tmp_path / "out", overrides, seconds=240) == "finished:completed", net.log[-3000:]
    assert "resuming after round" in net.log
    simulated(app, tmp_path / "ref", overrides)
    assert same_weights(tmp_path / "out", tmp_path / "ref")


@pytest.mark.slow
def test_sites_reject_by_their_own_settings_and_the_run_fails_with_the_reason(tmp_path, app):
    with deployed(tmp_path / "net", 0) as net:
        for site in range(2):
            net.register(site)
            allowed = net.settings(site, '[allow]\nmethods = ["fedavg", "scaffold"]\nuploads = ["w", "buffers"]\n')
            net.start_node(site, config=f'site="{allowed}"')
        started = time.monotonic()
        assert net.run(app, tmp_path / "rejected", overrides_of("scaffold"), seconds=180) == "finished:failed"
        assert 'does not allow the upload "scaffold/change"' in net.log
        assert time.monotonic() - started < 150
        assert net.run(app, tmp_path / "out", overrides_of("fedavg"), seconds=180) == "finished:completed"
        assert read_json(tmp_path / "out" / "sites.json")["sites"]["1"]["name"] == "ward 1"
        lines = list(read_lines(net.folder / "state1" / "sent.jsonl"))
        assert any("rejected" in line for line in lines)
        assert any(line.get("uploads") for line in lines)


@pytest.mark.slow
def test_a_supernode_that_was_started_without_site_toml_takes_no_part(tmp_path, app):
    with deployed(tmp_path / "net", 0) as net:
        net.register(0)
        net.start_node(0, config="partition-id=0 num-partitions=2")
        overrides = [*overrides_of("fedavg"), "run.min_clients=1"]
        assert net.run(app, tmp_path / "out", overrides, seconds=120, wait=30) == "finished:failed", net.log[-3000:]
        assert "its SuperNode was started without a site.toml" in net.log
        assert "without a site.toml" in (net.folder / "site0.log").read_text()
    assert not (tmp_path / "net" / "cache").exists()


@pytest.mark.slow
def test_a_run_without_sites_fails(tmp_path, app):
    with deployed(tmp_path / "net", 0) as net:
        assert net.run(app, tmp_path / "out", overrides_of("fedavg"), seconds=120, wait=5) == "finished:failed"
        assert "0 of 2 clients have joined within 5 s" in net.log
    assert not (tmp_path / "out" / "summary.json").exists()
