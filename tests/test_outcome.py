"""What becomes of what a tool returns."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.content import File, Image
from toolnexus.suspension import pending
from toolnexus.tools.base import Tool, ToolResult
from toolnexus.tools.outcome import NO_OUTPUT, clean_text, cut_text, to_result

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
TOOL = Tool("t")


def output(value: Any) -> str:
    """Return the text of a value's result, which must be a success without content."""
    result = to_result(value, TOOL)
    assert not result.is_error
    assert result.content == ()
    return result.output


class Color(enum.Enum):
    """An enum."""

    RED = "red"


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    when: datetime.date


@attrs.frozen
class Span:
    """An attrs class."""

    _start: int
    tags: frozenset[str] = frozenset()


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: int


class Model(pydantic.BaseModel):
    """A pydantic model."""

    at: datetime.datetime


class Scalar:
    """A number as array libraries have them."""

    def tolist(self) -> int:
        """Return the Python number."""
        return 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("", ""),
        (None, NO_OUTPUT),
        (5, "5"),
        (2.5, "2.5"),
        (True, "true"),
        ([1, None, "é"], '[1,null,"é"]'),
        ({"städte": {"a": 1}}, '{"städte":{"a":1}}'),
        ({2: "a", None: "b", True: "c", Color.RED: "d"}, '{"2":"a","null":"b","true":"c","red":"d"}'),
        (float("nan"), "NaN"),
        ([float("inf"), -float("inf")], '["Infinity","-Infinity"]'),
        (Scalar(), "7"),
        (ValueError, "<class 'ValueError'>"),
        (range(3), "[0,1,2]"),
        (map(str, [1, 2]), '["1","2"]'),
        ({"a": 1}.values(), "[1]"),
        (collections.deque([1]), "[1]"),
        (b"plain bytes", "plain bytes"),
        ([b"\x00\x01"], '["AAE="]'),
        ([Image("https://x/y.png"), "see"], None),
    ],
)
def test_values_become_text(value: Any, text: str | None) -> None:
    """Strings stay, the rest is compact JSON in UTF-8."""
    if text is None:
        assert to_result(value, TOOL).output == "[image: https://x/y.png]\nsee"
    else:
        assert output(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.datetime(2026, 3, 1, 10), "2026-03-01T10:00:00"),
        (datetime.date(2026, 3, 1), "2026-03-01"),
        (datetime.timedelta(minutes=1), "60.0"),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a/b"), "a/b"),
        (Color.RED, "red"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset([1, "a"]), '["a",1]'),
        (Point(1, datetime.date(2026, 3, 1)), '{"x":1,"when":"2026-03-01"}'),
        (Span(1, frozenset("b")), '{"start":1,"tags":["b"]}'),
        (Pair(1, 2), '{"left":1,"right":2}'),
        (Model(at=datetime.datetime(2026, 3, 1)), '{"at":"2026-03-01T00:00:00"}'),
    ],
)
def test_exe_01_values_that_json_lacks_have_sensible_text(value: Any, text: str) -> None:
    """Dates, decimals, sets, classes, paths: alone plain text or JSON, and inside a dict as well."""
    assert output(value) == text
    inside = json.loads(output({"it": [value]}))["it"][0]
    assert inside == (json.loads(text) if text[0] in "[{6" else text)


def test_exe_02_bytes_become_content_with_a_media_type() -> None:
    """A picture is an image, other data a file; both come through the neutral part."""
    result = to_result(PNG, TOOL)
    assert result.content == (Image(PNG, "image/png"),)
    assert result.output == "[image: image/png, 28 bytes]"
    assert result.content[0].to_part()["image_url"]["url"].startswith("data:image/png;base64,iVBO")
    assert to_result(b"%PDF-1.7 \xff", TOOL).content[0] == File(b"%PDF-1.7 \xff", "application/pdf")
    assert to_result(bytearray(b"\x00\xff"), TOOL).content[0] == File(b"\x00\xff", "application/octet-stream")


def test_exe_03_images_are_content_alone_and_among_text(tmp_path: Path) -> None:
    """An image never becomes base64 text; files are read when the tool ends."""
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    image = to_result(Image(path, detail="low"), TOOL)
    mixed = to_result(["before", Image(path), {"a": 1}, File(path)], TOOL)
    path.unlink()
    part = image.content[0].to_part()["image_url"]
    assert part["url"].startswith("data:image/png;base64,")
    assert part["detail"] == "low"
    assert "base64" not in mixed.output
    assert mixed.output.startswith("before\n[image: ")
    assert '\n{"a":1}\n[file: ' in mixed.output
    assert mixed.content[1].to_part()["file"]["filename"] == "cat.png"


def test_exe_03_what_draws_itself_is_an_image() -> None:
    """Objects that notebooks show as a picture are pictures; one that cannot is text."""

    class Drawing:
        def __init__(self, data: Any) -> None:
            self.data = data

        def __repr__(self) -> str:
            return "<drawing>"

        def _repr_png_(self) -> Any:
            if self.data is None:
                raise RuntimeError("no pen")
            return self.data

    assert to_result(Drawing(PNG), TOOL).content == (Image(PNG, "image/png"),)
    assert output(Drawing(None)) == "<drawing>"


def test_a_file_that_is_not_there_is_an_error_of_the_tool(tmp_path: Path) -> None:
    """A result that could not be sent is told at once, not when the request is made."""
    result = to_result(File(tmp_path / "no.pdf"), TOOL)
    assert result.is_error
    assert "cannot read" in result.output
    assert result.content == ()


def test_tool_results_pass_through() -> None:
    """A result stays the same object where nothing has to be done; suspensions always do."""
    result = ToolResult.ok("fine", k=1)
    assert to_result(result, TOOL) is result
    waiting = pending("x" * 100)
    assert to_result(waiting, Tool("t", max_output=10)) is waiting
    assert to_result(ToolResult(5), TOOL).output == "5"  # type: ignore[arg-type]
    cut = to_result(ToolResult("x" * 100, True, {"k": 1}), Tool("t", max_output=50))
    assert (len(cut.output), cut.is_error, cut.metadata) == (49, True, {"k": 1})


def test_a_returned_exception_is_an_error() -> None:
    """Its class and message are told; inside a list it is text."""
    result = to_result(KeyError("x"), TOOL)
    assert (result.output, result.is_error) == ("KeyError: 'x'", True)
    assert output([ValueError()]) == '["ValueError"]'


class Hostile:
    """Fails at everything that one may try."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class HostileMapping(collections.UserDict[str, int]):
    """A mapping that cannot be walked."""

    def items(self) -> Any:
        """Fail."""
        raise RuntimeError("no items")

    def __repr__(self) -> str:
        return "<hostile>"


def test_nothing_that_a_value_does_breaks_the_result() -> None:
    """Failing conversions fall back to repr, a failing repr to the type's name."""
    assert output(Hostile()) == "<Hostile>"
    assert output({"a": [Hostile()], Hostile(): 1}) == '{"a":["<Hostile>"],"<Hostile>":1}'
    assert output({"m": HostileMapping(a=1)}) == '{"m":"<hostile>"}'
    assert to_result(type("E", (Exception,), {"__str__": Hostile.__repr__})(), TOOL).output == "E"
    assert output(10**5000)


def test_structures_without_an_end_have_one() -> None:
    """What contains itself, and what goes down for ever, is cut short."""
    loop: list[Any] = [1]
    loop.append({"again": loop})
    assert output(loop) == '[1,{"again":"<the same list again>"}]'
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in output(deep)
    twice = [1]
    assert output([twice, twice]) == "[[1],[1]]"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("é", "é"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("😀\ud83d", "😀\ufffd"),
    ],
)
def test_lone_surrogates_are_replaced(text: str, clean: str) -> None:
    """Half a character becomes U+FFFD, two halves that belong together the character."""
    assert clean_text(text) == clean
    assert output(text) == clean
    assert json.loads(output([text])) == [clean]
    assert to_result(ToolResult.ok(text), TOOL).output == clean


@given(st.text(max_size=300), st.integers(1, 300))
def test_cut_text_keeps_head_and_tail_and_says_what_is_gone(text: str, limit: int) -> None:
    """The cut fits the limit, and head, tail and the count make up the whole."""
    cut = cut_text(text, limit)
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
    elif " characters cut ...]\n" in cut and "[... " not in text:
        head, _, rest = cut.partition("\n[... ")
        count, _, tail = rest.partition(" characters cut ...]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + int(count) + len(tail) == len(text)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.binary(max_size=10),
    st.datetimes(),
    st.decimals(),
    st.uuids(),
    st.complex_numbers(),
    st.fractions(),
    st.builds(Hostile),
    st.just(object),
    st.just(len),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_any_value_gives_text_that_can_be_sent(value: Any) -> None:
    """Whatever comes, the output is text that encodes, and JSON where the value was a container."""
    result = to_result(value, TOOL)
    result.output.encode("utf-8")
    if isinstance(value, list | tuple | dict):
        json.loads(result.output)
