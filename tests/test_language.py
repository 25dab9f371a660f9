"""Text that users read is plain English: no words of the project's old dialect, and sentences in docstrings."""

import ast
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import fullrank
from fullrank import methods, models
from fullrank.cli.methods import facts
from help_pages import commands, help_of

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))

DIALECT = re.compile(
    r"""\b(
        judg(e|es|ed|ing)      # evaluate
        | play(s|ed|ing)?      # run a round
        | look(s|ed|ing)?      # probe, inspect, measure
        | refus(e|es|ed|ing|als?)  # error, reject
        | (go|goes|going|went)\ on  # continue
        | anew                 # from scratch
        | aside                # detached
        | beside               # alongside, compared with
        | alone                # only, exclusively
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
IN_SOURCE = re.compile(
    r"""\b(
        apart                  # separately
        | said                 # given, stated
        | (some|every|any|no)body | whoever
        | so\ many             # a number of
        | (of\ (its|their)\ own) | (by\ (itself|themselves))
        | likewise | lest
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words that pages may use in a passage that a person has read, but no docstring and no message."""
ALLOWED = re.compile(r"\blook(s|ed|ing)? (up|like)\b", re.IGNORECASE)
"""Phrases in which such a word is ordinary English. Each was read by a person; add none without that."""

CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
"""Names of functions, files and keys between backticks are not sentences."""


def dialect(text, *further):
    """The words of the dialect in a text, with what surrounds them."""
    flat = ALLOWED.sub("", " ".join(CODE.sub("", text).split()))
    hits = (found for words in (DIALECT, *further) for found in words.finditer(flat))
    return [flat[max(0, found.start() - 40) : found.end() + 40] for found in hits]


def test_the_search_finds_words_and_leaves_phrases():
    assert len(dialect("The model is judged apart, and the run\ngoes\non beside it. Refused.")) == 4
    assert dialect("Look up the display of a prejudged playground; replayed standalone. It looks like this.") == []
    assert dialect("`Server.play` runs a round.") == []
    assert dialect("Somebody's, of its own.") == []
    assert len(dialect("Somebody's, of its own.", IN_SOURCE)) == 2


@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    found = dialect((ROOT / page).read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize("name", commands())
def test_help_pages(name, capsys):
    assert dialect(help_of(name, 80, capsys)) == []


@pytest.mark.parametrize("command", ["keys", "methods", "models"])
def test_lists(command, capsys):
    status, out, _ = fullrank(command, capsys=capsys)
    assert status == 0
    assert dialect(out) == []


@pytest.mark.parametrize("name", methods.available())
def test_descriptions_of_methods(name):
    known = facts(methods.find(name))
    for part in ("explanation", "sends", "keeps", "receives", "uploads"):
        assert dialect(str(known[part])) == [], part


def test_what_methods_show_says_of_every_method(capsys):
    assert dialect(fullrank("methods", "show", "fedavg", capsys=capsys)[1]) == []


@pytest.mark.parametrize("name", models.available())
def test_descriptions_of_models(name):
    assert dialect(models.available()[name].__doc__ or "") == []


# The source

PACKAGE = ROOT / "src" / "fullrank"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
FRAGMENT = re.compile(r"(Of|What|Who|Whose|Whether|Where|How|Likewise|Both|By|As|The same|All alike|For JSON)\b")
"""Beginnings of phrases that are no sentences; a function's docstring begins with a verb."""
NOUN = re.compile(r"(The|A|An|Each|Every|All|Those|These|This|Its|Their|Some|One|Two|No|Not|Nothing)\b")
PROPERTIES = ("property", "cached_property")


def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


def literals(tree: ast.AST) -> Iterator[str]:
    """The texts in the code: messages, warnings, helps and docstrings; a value that a message inserts is a blank."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [] if id(node) in inside else [node]
        found = [getattr(part, "value", None) if isinstance(part, ast.Constant) else " " for part in parts]
        if text := "".join(part for part in found if isinstance(part, str)).strip():
            yield text


def comments(text: str, python: bool = True) -> str:
    """The comments of a Python, TOML or make file."""
    if python:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return "\n".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
    return "\n".join(line.partition("#")[2] for line in text.splitlines())


def functions(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names and docstrings of public functions and methods that are no properties."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.If) and not getattr(node, "name", "").startswith("_"):
            yield from functions(node)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            wrapped = [ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list]
            if (text := ast.get_docstring(node)) and not set(wrapped) & {*PROPERTIES, "setter"}:
                yield node.name, text


def test_the_search_reads_docstrings_texts_and_functions():
    tree = ast.parse(
        '''
class Public:
    """A class."""

    size: int
    """Of the class."""

    @property
    def width(self):
        """Whether it is wide."""

    def grow(self):
        """Of the class."""
        raise ValueError(f"it is {self.size} and " "plays")

    def caution(self):
        return "looked at"


def _private():
    """Who knows."""
'''
    )
    assert sorted(text for text in literals(tree) if " " in text) == [
        "A class.",
        "Of the class.",
        "Of the class.",
        "Whether it is wide.",
        "Who knows.",
        "it is   and plays",
        "looked at",
    ]
    assert list(functions(tree)) == [("grow", "Of the class.")]


@pytest.mark.parametrize("module", MODULES)
def test_texts_and_comments(module):
    source = (PACKAGE / module).read_text(encoding="utf-8")
    texts = [text for text in literals(ast.parse(source)) if " " in text]
    assert [found for text in (*texts, comments(source)) for found in dialect(text, IN_SOURCE)] == []


def test_the_search_reads_comments():
    assert comments("x = 1  # plays\n# on\ny = '# text'\n") == "plays\non"
    assert comments("# plays\nkey = 1  # looked\n", python=False).split() == ["plays", "looked"]


FOLDERS = ("benchmarks", "examples", "experiments", "results")
FILES = [path for folder in FOLDERS for end in ("py", "toml") for path in sorted((ROOT / folder).rglob(f"*.{end}"))]
FILES += [ROOT / "Makefile", ROOT / "pyproject.toml"]


@pytest.mark.parametrize("file", [path.relative_to(ROOT).as_posix() for path in FILES])
def test_files_outside_the_package(file):
    source = (ROOT / file).read_text(encoding="utf-8")
    python = file.endswith(".py")
    texts = [text for text in literals(ast.parse(source)) if " " in text] if python else []
    assert [found for text in (*texts, comments(source, python)) for found in dialect(text, IN_SOURCE)] == []


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_of_functions_are_no_fragments(module):
    assert [name for name, text in functions(parsed(module)) if FRAGMENT.match(text)] == []


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_of_functions_begin_with_verbs(module):
    """Not those of networks, which say what a network is: `fullrank models` prints them next to the names."""
    builders = (
        {function.__name__ for function in models.available().values()} if module.startswith("models/") else set()
    )
    found = [name for name, text in functions(parsed(module)) if NOUN.match(text) and name not in builders]
    assert found == []


# Public functions


def public_functions() -> dict[str, Callable[..., Any]]:
    """The functions in the `__all__` of a package, and those of modules in it, by where they are defined."""
    found = {}
    for module in ("", *MODULES):
        if module.endswith("__init__.py") or not module:
            package = importlib.import_module(".".join(("fullrank", *Path(module).parts[:-1])))
            for name in getattr(package, "__all__", ()):
                value = getattr(package, name)
                for each in (value, *functions_of(value)):
                    if inspect.isfunction(each):
                        found[f"{each.__module__}.{each.__name__}"] = each
    return found


def functions_of(module: Any) -> list[Callable[..., Any]]:
    """The public functions that a module defines; none of a package, whose `__all__` says what is public."""
    if not inspect.ismodule(module) or hasattr(module, "__path__"):
        return []
    found = {name: value for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"}
    return [value for value in found.values() if value.__module__ == module.__name__]


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
    described = re.findall(r"^    (\w+): \S", found.get("Args", ""), re.MULTILINE)
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
