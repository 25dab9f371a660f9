"""The samples of a site."""

import pytest
import torch

from fullrank import Experiment
from fullrank.data import DataSet, Split
from fullrank.data.columns import Column
from fullrank.deploy.sites import SiteSettings
from fullrank.deploy.sites.samples import SiteData, in_order, load_site
from fullrank.errors import InputError


def test_tables_are_rejected_because_sites_do_not_exchange_the_sums_that_scale_columns(tmp_path):
    train = Split(torch.tensor([[20.0], [60.0]]), torch.tensor([0, 1]))
    table = DataSet("patients.csv", train, None, ("ill", "well"), columns=(Column("age"),))
    with pytest.raises(InputError, match="sites do not exchange such sums"):
        SiteData.own(table, Experiment(), client=0, name="north")
    file = tmp_path / "patients.csv"
    file.write_text("age,label\n" + "".join(f"{20 + row},{'ill' if row % 2 else 'well'}\n" for row in range(40)))
    data = {"name": str(file), "clients": 2, "partition": "iid"}
    with pytest.raises(InputError, match="rows of a table"):
        SiteData.part(Experiment(data=data), [0])


def test_a_site_in_a_trial_reads_no_folder_that_the_experiment_names(tmp_path):
    (tmp_path / "site.toml").write_text("[site]\nclient = 0\n")
    settings = SiteSettings.from_toml(tmp_path / "site.toml")
    data = {"name": "digits", "clients": 2, "partition": "iid"}
    assert list(load_site(Experiment(data=data), settings, [0]).clients) == [0]
    for name in ("digits", "cifar10"):
        with pytest.raises(InputError, match=r"does not read the folder that data\.root of the experiment names"):
            load_site(Experiment(data={**data, "name": name, "root": str(tmp_path)}), settings, [0])


def test_the_names_of_numbers_are_explained():
    scans = DataSet("scans", Split(torch.zeros(2, 1), torch.tensor([0, 1])), None, ("0", "1"))
    with pytest.raises(InputError, match=r'have the class "0", which .* does not name; the name of a class'):
        in_order(scans, ["benign", "malignant"])
