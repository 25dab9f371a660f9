"""Public functions document arguments, results and errors, and what the documented API offers has an example."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullrank import errors

PACKAGE = Path(__file__).parents[1] / "src" / "fullrank"
PACKAGES = ["", *sorted(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*/__init__.py"))]

WITH_EXAMPLES = ("", "collapse", "data", "engine", "methods", "models", "objectives", "probe")
"""The packages of the documented API: every function and class that they offer shows how it is used."""
PROTOCOLS = {"fullrank.engine.base.EngineFactory", "fullrank.objectives.criteria.Criterion"}
"""Types that are only named in annotations."""


def offered(packages: Any = PACKAGES) -> dict[str, Any]:
    """The functions and classes in the `__all__` of packages, and those of modules in it, by where they are defined."""
    found = {}
    for name in packages:
        package = importlib.import_module(".".join(("fullrank", *filter(None, name.split("/")))))
        for public in getattr(package, "__all__", ()):
            value = getattr(package, public)
            for each in (value, *members_of(value)):
                if inspect.isfunction(each) or inspect.isclass(each):
                    found[f"{each.__module__}.{each.__name__}"] = each
    return found


def members_of(module: Any) -> list[Any]:
    """What a module defines; nothing of a package, whose `__all__` says what is public."""
    if not inspect.ismodule(module) or hasattr(module, "__path__"):
        return []
    found = {name: value for name, value in vars(module).items() if name[0] != "_"}
    return [value for value in found.values() if getattr(value, "__module__", None) == module.__name__]


def public_functions() -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in offered().items() if inspect.isfunction(value)}


def sections(doc: str) -> dict[str, str]:
    """The sections of a Google-style docstring."""
    parts = re.split(r"^(Args|Returns|Raises):\n", doc.partition(">>>")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def missing_sections(function: Callable[..., Any]) -> list[str]:
    """What the docstring of a function lacks: sections, and parameters."""
    found, parameters = sections(inspect.getdoc(function) or ""), list(inspect.signature(function).parameters)
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    needed = ["Args"] * bool(parameters) + ["Raises"] * any(isinstance(node, ast.Raise) for node in ast.walk(body))
    if inspect.signature(function).return_annotation not in ("None", None):
        needed.append("Returns")
    described = re.findall(r"^    \*{0,2}(\w+): \S", found.get("Args", ""), re.MULTILINE)
    return [name for name in needed if name not in found] + [name for name in parameters if name not in described]


def test_a_missing_section_is_found():
    def documented(x: int, y: int = 0) -> int:
        """Add two numbers.

        Args:
            x: A number
                that y: is added to.
        """
        if x < 0:
            raise ValueError
        return x + y

    assert missing_sections(documented) == ["Raises", "Returns", "y"]


@pytest.mark.parametrize("name", sorted(public_functions()))
def test_public_functions_describe_arguments_results_and_errors(name):
    assert missing_sections(public_functions()[name]) == []


def test_the_documented_api_has_examples():
    """Doctests run them. An error needs none: its first sentence says when it is raised."""
    found = offered(WITH_EXAMPLES)
    assert len(found) > 60
    without = {name for name, value in found.items() if ">>>" not in (inspect.getdoc(value) or "")}
    raised = {name for name in without if inspect.isclass(found[name]) and issubclass(found[name], Exception)}
    assert without - raised - PROTOCOLS == set()
    assert ">>>" in (errors.FullrankError.__doc__ or "")
