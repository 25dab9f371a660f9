"""`fullrank flower new` writes an app that is complete, and needs no Flower for it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fullrank
import fullrank.deploy.flower
from commands import fullrank as command
from fullrank import methods
from fullrank.config.experiment import Experiment, read_toml
from fullrank.deploy.flower.new import write_app
from fullrank.deploy.sites import SiteSettings
from fullrank.deploy.sites.settings import Allowed, SiteTable
from fullrank.errors import InputError

README = "README.md"


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedprox+feddecorr", "fedmr", "ccvr", "fedrepopt"])
def test_an_app_fits_together(tmp_path, method):
    folder = tmp_path / "Our Hospitals"
    write_app(folder, method, 3)
    project = read_toml(folder / "pyproject.toml")
    assert project["project"]["name"] == "our-hospitals"
    for kind, name in project["tool"]["flwr"]["app"]["components"].items():
        module, _, attribute = name.partition(":")
        text = (folder / f"{module.replace('.', '/')}.py").read_text()
        assert f"{attribute} = {kind[:6]}" in text, kind
        compile(text, module, "exec")
    config = project["tool"]["flwr"]["app"]["config"]
    assert config["out"] == str(folder / "runs" / "first")
    experiment = Experiment.from_toml(folder / config["experiment"])
    assert (experiment.method.name, experiment.data.clients) == (method, 3)
    settings = SiteSettings.from_toml(folder / "site.toml")
    settings.check_values(experiment.model_dump())
    settings.check_experiment(experiment)
    shown = (folder / README).read_text()
    assert "$" not in shown.replace("$(", "").replace("${", "")


def test_what_goes_to_the_sites_is_listed_and_has_no_settings_of_a_site(tmp_path):
    write_app(tmp_path / "app")
    sent = read_toml(tmp_path / "app" / "pyproject.toml")["tool"]["flwr"]["app"]["fab-include"]
    files = {str(path.relative_to(tmp_path / "app")) for pattern in sent for path in (tmp_path / "app").glob(pattern)}
    assert "experiment.toml" in files
    assert "fullrank_app/data.py" in files
    assert not any("site" in Path(name).name for name in files)


def test_the_readme_opens_no_port_of_the_superlink_to_other_machines(tmp_path):
    write_app(tmp_path / "app")
    shown = (tmp_path / "app" / README).read_text()
    assert "flower-superlink --host 127.0.0.1 " in shown
    assert "0.0.0.0" not in shown


def test_every_setting_of_a_site_is_described(tmp_path):
    write_app(tmp_path / "app")
    template = read_toml(tmp_path / "app" / "site.toml")
    page = (Path(__file__).parents[3] / "docs" / "flower.md").read_text()
    for table, model in (("site", SiteTable), ("allow", Allowed)):
        for key in model.model_fields:
            assert f"\n| `{key}` |" in page, key
            assert key in template[table] or key == "threads", key


def test_a_folder_with_files_is_not_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not an empty folder"):
        write_app(tmp_path)
    with pytest.raises(InputError, match="did you mean"):
        write_app(tmp_path / "app", "scafold")
    with pytest.raises(InputError, match="at least 1"):
        write_app(tmp_path / "app", clients=0)
    with pytest.raises(InputError, match="cannot name an app"):
        write_app(tmp_path / "…")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    status, out, _ = command("flower", "new", str(tmp_path / "app"), "--method", "scaffold", capsys=capsys)
    assert status == 0
    assert "flwr run . --stream --federation-config 'num-supernodes=2'" in out
    _, out, _ = command("flower", "new", "--help", capsys=capsys)
    assert 'which the extra "flower"' in " ".join(out.split())
    status, _, err = command("flower", "new", str(tmp_path / "app"), capsys=capsys)
    assert status != 0
    assert "is not an empty folder" in err


def test_writing_an_app_imports_neither_flower_nor_torch_at_import_of_fullrank(tmp_path):
    code = (
        "import sys, json, fullrank; light = 'torch' not in sys.modules\n"
        "from fullrank.deploy.flower import write_app; write_app(sys.argv[1])\n"
        "print(json.dumps([light, any(name.startswith('flwr') for name in sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "app")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(fullrank.__file__).parents[1],
    )
    assert json.loads(done.stdout) == [True, False]


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_an_app_names_the_extra(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"a deployment needs Flower: pip install 'fullrank\[flower\]'"):
        fullrank.deploy.flower.client_app()
    with pytest.raises(InputError, match=r"fullrank\[flower\]"):
        fullrank.deploy.flower.server_app(tmp_path)


def test_every_method_can_be_asked_for(tmp_path):
    for name in methods.available():
        write_app(tmp_path / name, name)
        SiteSettings.from_toml(tmp_path / name / "site.toml")
