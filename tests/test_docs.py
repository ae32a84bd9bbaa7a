"""The documentation is true: its code runs, its tables match the code, every public name has a place."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
from pathlib import Path
from unittest import mock

import attrs
import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

import toolnexus
from toolnexus import errors, events

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "toolnexus").rglob("*.py")
)


def run_block(example: Example) -> None:
    """Run a block of Python and keep what it prints, for the block of output that may follow."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        PythonEvaluator()(example)
    example.namespace["__printed__"] = printed.getvalue()


def check_output(example: Example) -> str | None:
    """Compare a block of output with what the block before it printed; "..." stands for anything."""
    got = example.namespace["__printed__"].rstrip() + "\n"
    if doctest.OutputChecker().check_output(example.parsed.rstrip() + "\n", got, doctest.ELLIPSIS):
        return None
    return f"the page says:\n{example.parsed}\nit prints:\n{got}"


SYBIL = Sybil(
    parsers=[CodeBlockParser("python", run_block), CodeBlockParser("output", check_output), SkipParser()]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of Python runs, in order, and prints what the block of output below it says."""
    monkeypatch.chdir(tmp_path)
    document = SYBIL.parse(page)
    with mock.patch.dict(os.environ):
        for name in [n for n in os.environ if n.endswith(("_API_KEY", "_BASE_URL"))]:
            del os.environ[name]
        try:
            for example in document.examples():
                example.evaluate()
        finally:
            close_all(document.namespace)


def close_all(namespace: dict[str, object]) -> None:
    """Close the clients and servers that the blocks of a page left open, the newest first."""
    for value in reversed(list(namespace.values())):
        if type(value).__module__.startswith("toolnexus.") and hasattr(value, "close"):
            value.close()


@pytest.mark.parametrize("name", MODULES)
def test_doctests_of_a_module_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example in a docstring does what it shows."""
    monkeypatch.chdir(tmp_path)
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for case in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
        runner.run(case, out=report.write)
    assert runner.summarize(verbose=False).failed == 0, report.getvalue()


def error_tree(cls: type = errors.ToolnexusError, depth: int = 0) -> str:
    """Return the tree of exceptions as the page of errors shows it."""
    also = [
        base.__name__ for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception
    ]
    line = "    " * depth + cls.__name__ + (f" ({', '.join(also)})" if also else "")
    children = sorted(
        (c for c in cls.__subclasses__() if c.__module__ == errors.__name__ and cls is c.__bases__[0]),
        key=lambda c: errors_in_order().index(c.__name__),
    )
    return "\n".join([line, *(error_tree(child, depth + 1) for child in children)])


def errors_in_order() -> list[str]:
    """Return the names of the exceptions in the order in which the module defines them."""
    return [name for name, value in vars(errors).items() if inspect.isclass(value)]


def test_page_of_errors_shows_the_tree() -> None:
    """docs/errors.md shows every exception, its parent, and the built-in class it refines."""
    page = (DOCS / "errors.md").read_text("utf-8")
    assert error_tree() in page, f"the tree is:\n{error_tree()}"


def test_page_of_errors_shows_each_kind() -> None:
    """docs/errors.md has a row for each kind, with the class that has it and whether it is retried."""
    page = (DOCS / "errors.md").read_text("utf-8")
    for name in errors.__all__:
        cls = getattr(errors, name)
        if "kind" in vars(cls) and cls is not errors.ToolnexusError:
            retried = "yes" if cls._retryable else "no"
            assert re.search(rf"^\| `{cls.kind}` \| .*`{name}`.* \| {retried} \|", page, re.M), (
                name,
                cls.kind,
            )


def event_classes() -> list[type[events.Event]]:
    """Return the classes of events that a stream may yield."""
    values = (getattr(events, name) for name in events.__all__)
    return [v for v in values if inspect.isclass(v) and issubclass(v, events.Event) and v is not events.Event]


@pytest.mark.parametrize("cls", event_classes(), ids=lambda cls: cls.__name__)
def test_page_of_events_has_a_row_for_each(cls: type[events.Event]) -> None:
    """docs/events.md names each event with its type, its fields in order, and its channel."""
    own = [a.name for a in attrs.fields(cls) if a.name not in {b.name for b in attrs.fields(events.Event)}]
    fields = ", ".join(name.lstrip("_") for name in own if name != "_looked")
    page = (DOCS / "events.md").read_text("utf-8")
    assert f"| `{cls.type}` | `{cls.__name__}({fields})` | {cls.channel} |" in page


@pytest.mark.parametrize("name", toolnexus.__all__)
def test_reference_has_every_public_name(name: str) -> None:
    """docs/reference.md has an entry for each name that the package exports."""
    page = (DOCS / "reference.md").read_text("utf-8")
    entry = rf"auto(class|function|exception|data|attribute|module):: toolnexus\.{name}\b"
    assert name == "__version__" or re.search(entry, page)


def test_links_of_the_readme_lead_somewhere() -> None:
    """A link to a file of the project names a file that is there."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (ROOT / target).exists(), target


def test_every_make_target_that_the_docs_name_exists() -> None:
    """`make X` in the README and the contributor's page is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    text = "".join((ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md"))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.M)) <= targets
