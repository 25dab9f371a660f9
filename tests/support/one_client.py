"""A process that has one client's data and nothing else of the federation, and does that client's jobs.

Run as `python one_client.py FOLDER`. In the folder of each method lie `experiment.toml`, `facts.json`, `client.npz`
with that client's samples, and a file of bytes for each job; its result goes into a file next to it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from fullrank.config.experiment import Experiment, read_toml
from fullrank.data import Split
from fullrank.federated.codec import decode, encode
from fullrank.runs.assemble import assemble_site, hosted_data


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        experiment = Experiment(**read_toml(place / "experiment.toml"))
        facts = json.loads((place / "facts.json").read_text())
        with np.load(place / "client.npz") as saved:
            arrays = {name: torch.from_numpy(saved[name]) for name in saved.files}
        client = int(arrays.pop("client"))
        splits = Split(arrays["x"], arrays["y"]), Split(arrays["holdout_x"], arrays["holdout_y"])
        data = hosted_data(experiment, facts, {client: splits})
        site = assemble_site(experiment, facts, data)
        for job in sorted(place.glob("*.job")):
            result = site.do(decode(job.read_bytes()))
            job.with_suffix(".result").write_bytes(encode(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
