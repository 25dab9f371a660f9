"""Run directories that a test writes bit by bit, as a run would."""

import json

from fullrank import Experiment
from fullrank.runs.directory import RunDirectory


class Written:
    """A run directory in which this process seems to run."""

    def __init__(self, path, rounds=5, **keys):
        self.path = path
        self.directory = RunDirectory(path)
        self.directory.open()
        Experiment.of({"train.rounds": rounds, "model.name": "mlp", **keys}).to_toml(path / "experiment.toml")
        self.log("fedavg on digits", f"writing to {path}")

    def log(self, *lines):
        with (self.path / "log.txt").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def row(self, round, **values):
        """Append a row in one piece."""
        self.text(json.dumps({"round": round, "seconds": 2.0, "clients": [], **values}) + "\n")

    def text(self, text):
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(text)

    def end(self, *last_words):
        """End the process, as far as others can see."""
        self.log(*last_words)
        self.directory.close()

    def complete(self, rounds):
        (self.path / "summary.json").write_text(json.dumps({"rounds": rounds}))
        self.end()
