"""The samples of a site."""

import pytest
import torch

from fullrank import Experiment
from fullrank.data import DataSet, Split
from fullrank.data.columns import Column
from fullrank.deploy.sites.samples import SiteData
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
