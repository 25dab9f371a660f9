"""Imports on first use: public names and registries lead to objects that exist."""

import importlib
import pkgutil
import types

import pytest

import fullrank
from fullrank.data.augment.registry import AUGMENTATIONS
from fullrank.data.registry import PARTITIONS, VARIANTS
from fullrank.data.sources.registry import DATA_SETS, FORMATS
from fullrank.deploy.registry import FORMATS as EXPORTS
from fullrank.engine import ENGINES
from fullrank.federated.registry import AGGREGATORS
from fullrank.lazy import OnFirstUse
from fullrank.methods import METHODS, Method
from fullrank.models import MODELS
from fullrank.objectives.registry import CRITERIA
from fullrank.report.figures import KINDS

PACKAGES = ("fullrank", "fullrank.data", "fullrank.methods", "fullrank.models", "fullrank.objectives")
REGISTRIES = (AGGREGATORS, AUGMENTATIONS, CRITERIA, DATA_SETS, ENGINES, MODELS, PARTITIONS)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_of_a_package_has_the_name_of_an_exported_object(name):
    package = importlib.import_module(name)
    inside = {module.name for module in pkgutil.iter_modules(package.__path__)}
    exported = {public: getattr(package, public) for public in package.__all__}
    assert [public for public, found in exported.items() if public in inside and not is_module(found)] == []


def is_module(found):
    return isinstance(found, types.ModuleType)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_package_does_not_have_is_an_attribute_error(name):
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing
    with pytest.raises(ImportError):
        importlib.import_module(f"{name}.nothing")


@pytest.mark.parametrize(
    "table", [*(registry.own for registry in REGISTRIES), *VARIANTS.values(), FORMATS, EXPORTS, KINDS]
)
def test_every_import_path_of_a_registry_leads_to_an_object(table):
    assert isinstance(table, OnFirstUse)
    assert table
    assert all(found is not None and not isinstance(found, str) for found in table.values())


def test_every_file_of_the_methods_has_the_method_of_its_name():
    found = dict(METHODS.own)
    assert list(found) == sorted(found)
    assert {cls.name for cls in found.values()} == set(found)
    assert all(issubclass(cls, Method) for cls in found.values())
    assert "nothing" not in METHODS.own
    with pytest.raises(KeyError):
        _ = METHODS.own["nothing"]


def test_an_object_is_imported_once_and_can_be_replaced():
    table = OnFirstUse({"root": "math:sqrt"})
    assert table.data["root"] == "math:sqrt"
    assert table["root"] is table["root"]
    table["root"] = abs
    assert table["root"] is abs
    assert fullrank.Server.__name__ == "ServerView"  # under another name in its module
