"""The folder of a new Flower app. Writing it needs no Flower."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from string import Template

import tomli_w

from fullrank import methods
from fullrank.channels import part_name
from fullrank.deploy.sites.settings import MODEL_PARTS, exchanges
from fullrank.errors import InputError, writing
from fullrank.files import write_atomically

FILES = {
    "pyproject.toml": "pyproject.toml",
    "experiment.toml": "experiment.toml",
    "site.toml": "site.toml",
    "README.md": "README.md",
    "fullrank_app/server_app.py": "server_app.py",
    "fullrank_app/client_app.py": "client_app.py",
    "fullrank_app/data.py": "data.py",
}
"""The files of an app, and the template of each."""
MIN_COUNT = 5
"""The smallest number of samples of a class of which a new site sends statistics by class."""


def write_app(folder: str | Path, method: str = "fedavg", clients: int = 2) -> list[Path]:
    """Write the folder of a Flower app, which runs in Flower's simulation and in a deployment.

    Args:
        folder: The folder, which must not exist or be empty.
        method: The method, or several joined by +.
        clients: The number of sites.

    Returns:
        The files that were written.

    Raises:
        InputError: If the folder is not empty, its name cannot be that of an app, or there is no such method.

    >>> import tempfile
    >>> sorted(file.name for file in write_app(Path(tempfile.mkdtemp()) / "hospitals"))[:4]
    ['README.md', 'client_app.py', 'data.py', 'experiment.toml']
    """
    folder = Path(folder).expanduser().absolute()
    name = re.sub(r"[^a-z0-9-]+", "-", folder.name.lower()).strip("-")
    if not name:
        raise InputError(f'"{folder.name}" cannot name an app; use letters, digits and hyphens')
    if clients < 1:
        raise InputError(f"the number of sites is {clients}; it must be at least 1")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f'"{folder}" exists and is not an empty folder; choose another one')
    parts = methods.build(method).parts
    further = [part_name(part.name, what) for part in parts if exchanges(part) for what in part.uploads]
    uploads = [*MODEL_PARTS, *further]
    network = next((dict(part.tried_on) for part in parts if part.tried_on), {"name": "cnn"})
    counted = [part.name for part in parts if hasattr(part, "min_count")]
    values = {
        "name": name,
        "out": json.dumps(str(folder / "runs" / "first"))[1:-1],
        "method": method,
        "methods": ", ".join(json.dumps(piece.strip()) for piece in method.split("+")),
        "uploads": ", ".join(map(json.dumps, uploads)),
        "hyper": "".join(f"\n[method.{name}]\nmin_count = {MIN_COUNT}\n" for name in counted),
        "model": tomli_w.dumps(network),
        "code": ", ".join(json.dumps(piece.strip()) for piece in method.split("+") if ":" in piece),
        "clients": str(clients),
        "min_count": str(MIN_COUNT),
    }
    written = []
    with writing(folder, "the folder "):
        (folder / "fullrank_app").mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "fullrank_app" / "__init__.py", b"")
        write_atomically(folder / ".gitignore", b"/runs\n/state\n*.key\n*.pem\n*.csr\n*.srl\n*.db*\n")
        for path, template in FILES.items():
            text = resources.files(__package__).joinpath("template", f"{template}.tmpl").read_text(encoding="utf-8")
            write_atomically(folder / path, Template(text).substitute(values).encode())
            written.append(folder / path)
    return written
