"""Text that users read is plain English: no words of the project's old dialect, and sentences in docstrings."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fullrank"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = [ROOT / name for name in ("benchmarks", "examples", "experiments", "results")]
SCRIPTS = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
TABLES = [path for folder in (PACKAGE, *FOLDERS) for path in sorted(folder.rglob("*.toml"))]
TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
PAGES = [path for folder in (ROOT, ROOT / "docs", *FOLDERS) for path in sorted(folder.glob("*.md"))]

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
        | (fall|falls|fell|set|sets|told)\ apart | judged\ apart  # separately
        | nobody | whoever     # no client, anyone
        | likewise             # in the same way
        | lest                 # so that … not
        | (of\ (its|their)\ own)(?=\s*([.,;:()]|$|(and|or|but|such|that|if|in)\b))  # separate
        | by\ (itself|themselves)  # automatically, separately
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words of the project's old dialect, each with what to write instead."""
IN_SOURCE = re.compile(
    r"\b(apart|said|(some|every|any)body|so many|of (its|their) own)\b",
    re.IGNORECASE,
)
"""Further words, which pages may use in a passage that a person has read, but no docstring and no message."""
ALLOWED = re.compile(r"\blook(s|ed|ing)? (up|like)\b", re.IGNORECASE)
"""Phrases in which such a word is ordinary English. Each was read by a person; add none without that."""

CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
"""Names of functions, files and keys between backticks are not sentences."""


def dialect(text: str, *further: re.Pattern[str]) -> list[str]:
    """The words of the dialect in a text, with what surrounds them."""
    flat = ALLOWED.sub("", " ".join(CODE.sub("", text).split()))
    hits = (found for words in (DIALECT, *further) for found in words.finditer(flat))
    return [flat[max(0, found.start() - 40) : found.end() + 40] for found in hits]


def test_the_search_finds_words_and_leaves_phrases():
    assert len(dialect("The model is judged, and the run\ngoes\non beside it. Refused.")) == 4
    assert dialect("Look up the display of a prejudged playground; replayed standalone. It looks like this.") == []
    assert dialect("`Server.play` runs a round.") == []
    assert dialect("On samples of its own site. Somebody's.") == []
    assert len(dialect("It has settings of its own, and runs by itself.")) == 2
    assert len(dialect("On samples of its own site. Somebody's.", IN_SOURCE)) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages(page):
    assert dialect(page.read_text(encoding="utf-8")) == []


# Texts in code: help pages, `fullrank keys`, `methods` and `models` print docstrings and messages that are found here


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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


def test_the_search_reads_comments():
    assert comments("x = 1  # plays\n# on\ny = '# text'\n") == "plays\non"
    assert comments("# plays\nkey = 1  # looked\n", python=False).split() == ["plays", "looked"]


def may_have_dialect(source: str) -> bool:
    """Whether a word of the dialect is anywhere in a source, names included; most sources need no closer reading."""
    flat = " ".join(re.sub(r"[\"'#()]", " ", source).split())
    return bool(DIALECT.search(flat) or IN_SOURCE.search(flat))


def dialect_in(source: str) -> list[str]:
    """The words of the dialect in the texts and the comments of a Python source."""
    texts = [text for text in literals(ast.parse(source)) if " " in text]
    return [hit for text in (*texts, comments(source)) for hit in dialect(text, IN_SOURCE)]


def test_the_search_reads_sources():
    source = 'look = "a b"\n# goes\n# on\nraise ValueError("it is " "refused " f"by {look}")\n'
    assert may_have_dialect(source)
    assert len(dialect_in(source)) == 2
    assert not may_have_dialect('"""Reads well."""')


def test_texts_and_comments_of_the_package_and_of_scripts():
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (*MODULES, *SCRIPTS)}
    found = {file: dialect_in(source) for file, source in sources.items() if may_have_dialect(source)}
    assert {file: hits for file, hits in found.items() if hits} == {}


def test_tables_and_settings():
    """TOML files of the papers have sentences in their values as well as in their comments."""
    found = {path.relative_to(ROOT).as_posix(): dialect(path.read_text(encoding="utf-8")) for path in TABLES}
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml"):
        found[path.name] = dialect(comments(path.read_text(encoding="utf-8"), python=False), IN_SOURCE)
    assert {file: hits for file, hits in found.items() if hits} == {}


OF_TESTS = re.compile(
    r"(?<![a-z])(judg\w*|play(s|ed|ing)?|look(s|ed|ing)?(?! up| like)|refus\w*"
    r"|(go|goes|going|went) on|anew|aside|beside|alone)(?![a-z])"
)
"""Words of the dialect in the source of a test, in names as well; a name is a sentence with underscores."""
QUOTED = ("Connection refused", '"refused"', "scales_beside_identity")
"""Messages of other software, and names of the library."""


def words_of_tests(source: str) -> list[str]:
    for quoted in QUOTED:
        source = source.replace(quoted, "")
    return [found.group() for found in OF_TESTS.finditer(source.lower().replace("_", " "))]


def test_names_and_texts_of_tests():
    assert words_of_tests("def test_that_it_goes_on_alone(): # Looks up what plays, standalone.") == [
        "goes on",
        "alone",
        "plays",
    ]
    found = {path.name: words_of_tests(path.read_text(encoding="utf-8")) for path in TESTS}
    assert {file: hits for file, hits in found.items() if hits} == {}


# Sentences in docstrings

FRAGMENT = re.compile(r"(Of|What|Who|Whose|Likewise|Both|Beside|All alike|As before|For JSON)\b")
"""Beginnings of phrases that are no sentences."""
CLAUSE = re.compile(r"(Whether|Where|How|By|As|The same)\b")
"""Beginnings of clauses, which can describe an attribute but not a function."""
NOUN = re.compile(r"(The|A|An|Each|Every|All|Those|These|This|Its|Their|Some|One|Two|No|Not|Nothing)\b")
"""Beginnings of noun phrases: a function's docstring begins with a verb."""
PROPERTIES = {"property", "cached_property", "setter"}


@cache
def docstrings(tree: ast.Module) -> list[str]:
    """All docstrings: those of modules, classes, functions and attributes."""
    texts, blocks = [], [tree]
    while blocks:
        block = blocks.pop()
        for part in (*block.body, *getattr(block, "orelse", ())):
            if isinstance(part, ast.Expr) and isinstance(getattr(part.value, "value", None), str):
                texts.append(part.value.value.strip())
            elif hasattr(part, "body"):
                blocks.append(part)
    return texts


def functions(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names and docstrings of public functions and methods that are no properties."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.If) and not getattr(node, "name", "").startswith("_"):
            yield from functions(node)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            wrapped = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
            if (text := ast.get_docstring(node)) and not wrapped & PROPERTIES:
                yield node.name, text


def builders(tree: ast.Module) -> set[str]:
    """The functions of a module that build networks, whose docstrings say what a network is."""
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in named if node.returns is not None and ast.unparse(node.returns) == "Net"}


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


def small() -> Net:
    """A network."""
'''
    )
    texts = ["A class.", "A network.", "Of the class.", "Of the class.", "Whether it is wide.", "Who knows."]
    assert sorted(docstrings(tree)) == texts
    assert sorted(text for text in literals(tree) if " " in text) == [*texts, "it is   and plays", "looked at"]
    assert list(functions(tree)) == [("grow", "Of the class."), ("small", "A network.")]
    assert builders(tree) == {"small"}


def test_docstrings_are_no_fragments():
    found = [(path.name, text) for path in MODULES for text in docstrings(parsed(path)) if FRAGMENT.match(text)]
    assert found == []


def test_docstrings_of_functions_begin_with_verbs():
    """Not those of networks, which say what a network is: `fullrank models` prints them next to the names."""
    found = []
    for path in MODULES:
        networks = builders(parsed(path)) if "models" in path.parts else set()
        for name, text in functions(parsed(path)):
            if CLAUSE.match(text) or (NOUN.match(text) and name not in networks):
                found.append((path.name, name))
    assert found == []


SECTIONS = re.compile(r"^ *(?:(Attributes)|(Args)|(Returns|Yields)|(Raises)):$", re.MULTILINE)


def test_sections_of_docstrings_are_in_order():
    found = []
    for path in MODULES:
        for text in docstrings(parsed(path)):
            places = [section.lastindex for section in SECTIONS.finditer(text)]
            if places != sorted(set(places)):
                found.append((path.name, text))
    assert found == []
