"""The pages for contributors name only what there is."""

import ast
import re
from pathlib import Path

import pytest

from fullrank.config.experiment import read_toml
from fullrank.data.augment.registry import AUGMENTATIONS
from fullrank.data.registry import PARTITIONS
from fullrank.data.sources.registry import DATA_SETS
from fullrank.methods import METHODS
from fullrank.models import MODELS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fullrank"
PAGES = ("CONTRIBUTING.md", "docs/architecture.md")


def quoted(page: str) -> list[str]:
    """Everything between backticks, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", text)


def found(path: str) -> Path | None:
    """The file or folder that a page names, in the package or in the repository."""
    return next((place / path for place in (PACKAGE, ROOT) if (place / path).exists()), None)


def defined(file: Path) -> set[str]:
    """The functions, classes and constants of a module, and `Class.member`."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_names_exist(page):
    missing, paths = [], 0
    for text in quoted(page):
        if not re.fullmatch(r"[\w./-]*(?:\.(?:py|md|toml)|/)(?:::[\w.]+)?", text):
            continue
        path, _, name = text.partition("::")
        file = found(path)
        paths += 1
        if file is None or (name and name not in defined(file)):
            missing.append(text)
    assert missing == []
    assert paths > 5


@pytest.mark.parametrize("page", PAGES)
def test_dotted_names_can_be_imported(page):
    for text in quoted(page):
        if re.fullmatch(r"fullrank(\.\w+)+", text):
            path = PACKAGE.joinpath(*text.split(".")[1:])
            known = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
            assert known or text.split(".")[-1] in (PACKAGE / "__init__.py").read_text(), text


DOCS = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "RESULTS.md", *DOCS])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", DOCS)
def test_the_readme_leads_to_every_page(page):
    assert re.search(rf"\]\({re.escape(page)}[#)]", (ROOT / "README.md").read_text())


def contract() -> list[set[str]]:
    """The layers from the highest to the lowest, as import-linter checks them."""
    (table,) = read_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["contracts"]
    return [set(re.findall(r"fullrank\.(\w+)", layer)) for layer in table["layers"]]


def picture(page: str, column: int) -> list[set[str]]:
    """The layers in the first block of a page, whose names begin in this column."""
    lines = (ROOT / page).read_text().split("```")[1].splitlines()
    cells = [re.split(r"  +", line[column:])[0] for line in lines]
    return [set(re.findall(r"\w+", cell)) for cell in cells if re.match(r"\w", cell)]


def test_the_contract_has_every_package_and_module():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set().union(*contract()) == parts - {"__init__", "__main__"}


@pytest.mark.parametrize(("page", "column"), [("CONTRIBUTING.md", 0), ("docs/architecture.md", 23)])
def test_the_pictures_show_the_layers_of_the_contract(page, column):
    assert picture(page, column) == [layer - {"_version"} for layer in contract()]


def comment_of(key: str, value: str) -> list[str]:
    """The words of the comment that the README has after a key of its example."""
    comments = re.findall(rf'^{key} = "{value}" +# (.*(?:\n +# .*)*)$', (ROOT / "README.md").read_text(), re.MULTILINE)
    (comment,) = comments
    return re.findall(r"[\w.-]+(?::[\w,]+)?", comment)


def test_the_readme_lists_what_the_registries_have():
    data_sets, partitions = comment_of("name", "digits"), comment_of("partition", "dirichlet")
    assert data_sets[: len(DATA_SETS.own)] == list(DATA_SETS.own)
    assert partitions[: len(PARTITIONS.own)] == list(PARTITIONS.own)
    words = [word.partition(":")[0] for word in comment_of("augment", "auto")]
    start = words.index("of") + 1
    assert words[start : start + len(AUGMENTATIONS.own)] == list(AUGMENTATIONS.own)
    models = comment_of("name", "cnn")
    assert models[:5] == [name for name in models[:5] if name in MODELS.own]
    text = (ROOT / "README.md").read_text().lower().replace("-", "_")
    assert [name for name in METHODS.own if not re.search(rf"\b{name}\b", text)] == []
