"""Redaction of texts in pieces: nothing leaks at any split, and nothing is held back without need."""

from __future__ import annotations

import itertools
import re
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import Text
from toolnexus.compose import PII, redact, redact_text
from toolnexus.compose.partial import analyse, combined
from toolnexus.compose.redaction_buffer import Buffer, JsonBuffer
from toolnexus.compose.redaction_rules import compiled

KINDS = ("email", "card", "ip", "mac", "url", "iban", "phone")

VALUES = {
    "email": [
        "ada@example.com",
        "o'brien+x@mail.example.co.uk",
        "josé@bücher.example",
        "a@xn--80ak.xn--p1ai",
    ],
    "card": [
        "4111 1111 1111 1111",
        "4532-0151-1283-0366",
        "4532015112830366",
        "378282246310005",
        "3782 822463 10005",
        "6304 0000 0000 0000 000",
    ],
    "ip": ["192.168.0.17", "8.8.8.8", "2001:db8::8a2e:370:7334", "fe80::1", "::ffff:10.0.0.1"],
    "mac": ["00:1A:2B:3C:4D:5E", "00-1a-2b-3c-4d-5e", "001a.2b3c.4d5e"],
    "url": ["https://example.com/a_(b)?q=1#x", "www.example.org", "example.com/path", "HTTP://1.2.3.4:80/"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "fr1420041010050500013m02606"],
    "phone": ["+49 30 901820", "+1 (650) 253-0000", "+442070313000"],
}
ALL = [(kind, value) for kind, values in VALUES.items() for value in values]


def streamed(pieces: list[str], *rules: str | PII, strategy: str = "redact") -> str:
    """Redact pieces of a text and join what comes out."""
    events = redact([Text(piece) for piece in pieces], *rules, strategy=strategy)
    return "".join(event.delta for event in events if isinstance(event, Text))


def tag(kind: str) -> str:
    return f"[REDACTED_{ {'card': 'CREDIT_CARD', 'mac': 'MAC_ADDRESS'}.get(kind, kind.upper()) }]"


@pytest.mark.parametrize(("kind", "value"), ALL)
def test_f112_a_value_split_anywhere_never_leaks(kind: str, value: str) -> None:
    """At every split in two, and one character a piece, a value is replaced as a whole."""
    text = f"Ask {value} now, or (later)."
    expected = f"Ask {tag(kind)} now, or (later)."
    for position in range(len(text) + 1):
        assert streamed([text[:position], text[position:]], kind) == expected
    assert streamed(list(text), kind) == expected
    assert redact_text(text, kind) == expected


@pytest.mark.parametrize(("kind", "value"), ALL)
def test_f118_a_value_at_the_end_of_a_text_is_replaced(kind: str, value: str) -> None:
    """F118: what is held back when the events end comes out, redacted."""
    assert streamed(list(f"It is {value}"), kind) == f"It is {tag(kind)}"
    assert streamed([value], kind) == tag(kind)


def test_f111_an_address_in_two_pieces() -> None:
    """The example of the reference."""
    assert streamed(["contact ada@", "example.com now"], "email") == "contact [REDACTED_EMAIL] now"


def test_no_stray_letters_behind_a_growing_value() -> None:
    """A7.6: an address that could still grow is not replaced early, so no letter of it is left over."""
    pieces = ["ada@example.co", "m", " and bob@example.com", ".", "br", " x"]
    assert streamed(pieces, "email") == "[REDACTED_EMAIL] and [REDACTED_EMAIL] x"
    assert streamed(pieces, "email", strategy="hash") == redact_text(
        "".join(pieces), "email", strategy="hash"
    )


words = st.sampled_from(
    [value for _, value in ALL]
    + [
        "hello",
        "a@b",
        "12:30",
        "999.999.999.999",
        "1234 5678",
        "v1.2",
        "std::vector",
        "and/or",
        "T-1",
        "x\\n",
    ]
)
glue = st.sampled_from([" ", ", ", "\n", "", "-", ".", ":", "/", "(", ") ", "@", "a", "12 ", "\u00a0", "。"])
texts = st.lists(st.tuples(words, glue), max_size=6).map(lambda pairs: "".join(a + b for a, b in pairs))


@st.composite
def split_texts(draw: st.DrawFn) -> list[str]:
    """Draw a text in pieces."""
    text = draw(texts | st.text(max_size=40))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


@given(split_texts(), st.sampled_from(["redact", "mask", "hash"]))
def test_pieces_and_the_whole_are_redacted_alike(pieces: list[str], strategy: str) -> None:
    """However a text is cut, the joined pieces are what the whole text gives: nothing leaks."""
    whole = "".join(pieces)
    expected = redact_text(whole, *KINDS, strategy=strategy)
    assert streamed(pieces, *KINDS, strategy=strategy) == expected
    assert streamed(list(whole), *KINDS, strategy=strategy) == expected


@given(split_texts())
def test_what_is_not_protected_is_unchanged(pieces: list[str]) -> None:
    """Between the placeholders stands what stood between the values, in order."""
    whole = "".join(pieces)
    redacted = streamed(pieces, *KINDS)
    kept = re.split(r"\[REDACTED_[A-Z_]+\]", redacted)
    pattern = ".*?".join(map(re.escape, kept))
    assert re.fullmatch(pattern, whole, re.DOTALL)


@given(
    st.lists(words | st.text("abc019@.:-/", max_size=12), max_size=6),
    st.sampled_from([" | ", ", ", "\n", " (", "。"]),
    st.sampled_from(["redact", "mask", "hash"]),
)
def test_placeholders_are_not_redacted_again(parts: list[str], between: str, strategy: str) -> None:
    """
    A7.6: redacting what is redacted changes nothing; in one stream a placeholder is never looked at.

    Words apart, that is: where two values were run together, the second one may begin in the middle of a
    word, where none is looked for, until a placeholder ends that word.
    """
    kinds = ("email", "card", "mac", "url", "iban")
    once = redact_text(between.join(parts), *kinds, strategy=strategy)
    assert redact_text(once, *kinds, strategy=strategy) == once


def test_what_stands_in_a_values_place_is_never_looked_at() -> None:
    """A7.6: not even where it is a value of another rule."""
    rules = (PII("card", replacement="ada@example.com"), PII("mac", replacement="bob@"), "email")
    text = "4111 1111 1111 1111, and 00:1A:2B:3C:4D:5E example.com, and eve@example.com."
    expected = "ada@example.com, and bob@ example.com, and [REDACTED_EMAIL]."
    assert redact_text(text, *rules) == expected
    for position in range(len(text) + 1):
        assert streamed([text[:position], text[position:]], *rules) == expected


@given(split_texts())
def test_two_redactions_on_top_of_each_other(pieces: list[str]) -> None:
    """A redacted stream can be redacted again."""
    events = redact(redact([Text(piece) for piece in pieces], "email"), "card")
    joined = "".join(event.delta for event in events if isinstance(event, Text))
    assert joined == redact_text(redact_text("".join(pieces), "email"), "card")


# -- no more is held back than must be -------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "text", "held"),
    [
        (("email",), "Hello, world", "world"),
        (("email",), "Hello, world ", ""),
        (("email",), "write to ada@", "ada@"),
        (("email",), "ada@example.com", "ada@example.com"),
        (("email",), "x" * 200, "x" * 64),
        (("card",), "Hello, world", ""),
        (("card",), "In 2024 we", ""),
        (("card",), "it is 4111 1111 ", "4111 1111 "),
        (("card",), "it is 4111 1111 w", ""),
        (("ip",), "version 1.2", "1.2"),
        (("ip",), "version 1.2 is", ""),
        (("url",), "see http", "http"),
        (("url",), "see https://example.com/a", "https://example.com/a"),
        (("mac",), "0:1", ""),
        (("iban",), "in DE89", "DE89"),
        (("phone",), "call +49 30", "+49 30"),
        (("phone",), "call me", ""),
        ((PII("ticket", pattern="T-[0-9]{3}"),), "my T-12", "T-12"),
        ((PII("ticket", pattern="T-[0-9]{3}"),), "my T-123", ""),
        ((PII("name", pattern="Ada Lovelace"),), "said Ada Love", "Ada Love"),
        ((PII("name", pattern="Ada Lovelace"),), "said Ada Loves", ""),
        ((PII("word", function=lambda text: ["xyz"], longest=3),), "abcdefg", "efg"),
    ],
)
def test_no_more_is_held_back_than_must_be(rules: tuple[str | PII, ...], text: str, held: str) -> None:
    """What goes out at once is all that more text cannot turn into a value."""
    buffer = Buffer(compiled(rules))
    out = "".join(buffer.feed(char) for char in text)
    assert buffer.held == held
    assert out == redact_text(text.removesuffix(held), *rules)


@pytest.mark.parametrize(
    "pattern",
    [
        "ab+c?",
        "(?<![ab])a(?:b|ca){1,2}(?!c)",
        r"\ba+?b\b",
        "a(?=bc)b",
        r"(a|b)c\1",
        "a$",
        "^ab",
        "(?:ab|abc)(?!a)",
        "a{2}",
        "(?:a{1,2}b)+c{2,}",
        "c(?!ab)[abc]{2}",
        "(?i:A)b",
        "(?P<x>a)b*",
        *(["a++b", "(?>ab|a)c?"] if sys.version_info >= (3, 11) else []),
    ],
)
def test_the_unsettled_part_of_a_pattern_is_found(pattern: str) -> None:
    """From the first place on where more text could change what a pattern matches, the text is unsettled."""
    one = re.compile(pattern)
    found = analyse(one)
    assert found is not None
    unsettled = combined((found,))
    more = ["".join(chars) for size in range(4) for chars in itertools.product("abc\n", repeat=size)]
    for size in range(1, 5):
        for text in map("".join, itertools.product("abc", repeat=size)):
            match = unsettled.search(text)
            stop = match.start() if match else len(text)
            for start in range(stop):
                spans = {m.span() if (m := one.match(text + rest, start)) else None for rest in more}
                assert len(spans) == 1, (text, start, stop)


def test_a_pattern_that_cannot_be_analysed_holds_back_everything() -> None:
    """Better late than leaked."""
    rule = PII("odd", pattern="(a)?(?(1)b|c)")
    assert streamed(["xab", "y"], rule) == "x[REDACTED_ODD]y"
    events = redact([Text("xa"), Text("by")], rule)
    assert [event.delta for event in events if isinstance(event, Text)] == ["x[REDACTED_ODD]y"]


def test_a_function_without_a_limit_holds_back_everything() -> None:
    """A function may find anything, so its text is whole before it is asked."""
    rule = PII("name", function=lambda text: [m.span() for m in re.finditer("Ada Lovelace", text)])
    assert streamed(list("I am Ada Lovelace."), rule) == "I am [REDACTED_NAME]."


@given(st.lists(st.sampled_from("ab0 "), max_size=40))
def test_a_function_with_a_limit_leaks_nothing(chars: list[str]) -> None:
    """With the length of the longest value, text goes out early and no value does."""
    rule = PII("x", function=lambda text: [m.span() for m in re.finditer("ab+0", text)][:50], longest=42)
    joined = streamed(chars, rule)
    assert not re.search("ab+0", joined)
    assert joined == redact_text("".join(chars), rule)


# -- JSON ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"to":"ada@example.com"}', r'{"to":"[REDACTED_EMAIL]"}'),
        (r'{"to":"ada\u0040example.com"}', r'{"to":"[REDACTED_EMAIL]"}'),
        (r'{"x":"one\nada@example.com\ttwo"}', r'{"x":"one\n[REDACTED_EMAIL]\ttwo"}'),
        (r'{"x":"\"ada@example.com\" \\ \u00e9 \ud83d\udc00"}', '{"x":"\\"[REDACTED_EMAIL]\\" \\\\ é 🐀"}'),
        (r'{"x":"\ud83d \udc22 ok"}', '{"x":"\\ud83d \ufffd ok"}'),
        (r'{"x":"a\\', r'{"x":"a\\'),
        (r'{"x":"a\u00', r'{"x":"a\u00'),
    ],
)
def test_escapes_count_as_what_they_stand_for(text: str, expected: str) -> None:
    """In arguments of a call, an escaped character hides nothing, and what comes out is JSON again."""
    rules = compiled(("email",))
    for position in range(len(text) + 1):
        buffer = JsonBuffer(rules)
        assert buffer.feed(text[:position]) + buffer.feed(text[position:]) + buffer.flush() == expected
    buffer = JsonBuffer(rules)
    assert "".join(map(buffer.feed, text)) + buffer.flush() == expected


def test_a_replacement_cannot_break_out_of_a_json_text() -> None:
    """A replacement with quotes is escaped where it stands in a JSON text."""
    buffer = JsonBuffer(compiled((PII("email", replacement='"},{"'),)))
    assert buffer.feed('{"a":"ada@example.com"}') + buffer.flush() == '{"a":"\\"},{\\""}'


# -- speed -----------------------------------------------------------------------------------


def test_time_grows_with_the_text_and_not_faster() -> None:
    """A value that never ends is searched again and again, but not so often that it takes for ever."""

    def seconds(size: int) -> float:
        buffer = Buffer(compiled(()))
        buffer.feed("http://")
        began = time.thread_time()
        for _ in range(size):
            buffer.feed("a")
        buffer.flush()
        return time.thread_time() - began

    seconds(1000)
    assert seconds(40_000) < 40 * max(0.02, seconds(4000))


def test_a_long_value_is_still_replaced() -> None:
    """What is not looked at with every piece is looked at in the end."""
    long = "https://example.com/" + "a" * 5000
    assert streamed(list(long + " end"), "url") == "[REDACTED_URL] end"
    assert streamed(list(long), "url") == "[REDACTED_URL]"
