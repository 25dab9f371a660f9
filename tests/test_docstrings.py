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


def described_parameters(doc: str) -> list[str]:
    """The names in the section Args of a docstring."""
    return re.findall(r"^    \*{0,2}(\w+)(?: \(.*?\))?: \S", sections(doc).get("Args", ""), re.MULTILINE)


def parameters(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """The parameters of a function or a method, or those with which objects of a class are created."""
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                return parameters(part)
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
        return [field.target.id for field in fields if "ClassVar" not in ast.unparse(field.annotation)]
    given = node.args
    named = [*given.posonlyargs, *given.args, *filter(None, [given.vararg]), *given.kwonlyargs, given.kwarg]
    names = [each.arg for each in named if each is not None]
    return names[1:] if names and (names[0] == "self" or _is_class_method(node)) else names


def _is_class_method(node: ast.FunctionDef) -> bool:
    return "classmethod" in map(ast.unparse, node.decorator_list) or node.name == "__init_subclass__"


def wrong_parameters(source: str) -> list[str]:
    """The functions and classes whose sections Args do not describe their parameters, in their order."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    told = [(node, described_parameters(ast.get_docstring(node) or "")) for node in nodes]
    return [node.name for node, names in told if names and names != parameters(node)]


def test_a_parameter_that_is_gone_or_new_is_found():
    text = '"""Add.\n\n    Args:\n        x: One.\n        y: Other.\n    """'
    assert wrong_parameters(f"def add(x, y):\n    {text}") == []
    assert wrong_parameters(f"class Add:\n    {text}\n    def __init__(self, x): ...") == ["Add"]
    assert wrong_parameters(f"def add(x, *, y, z=0):\n    {text}\ndef more(y, x):\n    {text}") == ["add", "more"]


def test_every_section_of_arguments_describes_the_parameters():
    found = {path.relative_to(PACKAGE).as_posix(): wrong_parameters(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}
