"""What protected values look like: patterns, and checks of what they find."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

import attrs

from toolnexus._extras import need

__all__ = ["Detector", "luhn", "phone_detector", "standard_detectors"]

#: Where a value lies within what the pattern found, or None where there is none.
Check = Callable[[str], "tuple[int, int] | None"]


@attrs.frozen(eq=False)
class Detector:
    """
    One way in which values of a kind are found.

    Args:
        pattern: What a value looks like at most.
        check: Finds the first value within what the pattern found; by default all of it is one.
        hint: The inside of a class of characters, of which each value has one; before its first blank, if it
            may have blanks.
        sign: A pattern that is quicker to search for, and is in each value.
    """

    pattern: re.Pattern[str]
    check: Check | None = None
    hint: str | None = None
    sign: re.Pattern[str] | None = None


# Letters of addresses: Latin, Greek, Cyrillic, Armenian. Scripts without spaces between words are left
# out, or the words around an address would be taken for a part of it.
_LETTER = r"A-Za-z\u00AA\u00BA\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u024F\u0370-\u0373\u0376-\u058A\u1E00-\u1FFF"
_LABEL = rf"[{_LETTER}0-9](?:[{_LETTER}0-9_-]{{0,61}}[{_LETTER}0-9])?"
_TLD = rf"(?:[Xx][Nn]--[A-Za-z0-9-]{{2,59}}|[{_LETTER}]{{2,63}})"

_EMAIL = re.compile(
    rf"[{_LETTER}0-9_%+-](?:[{_LETTER}0-9_.%+'-]{{0,62}}[{_LETTER}0-9_%+-])?@(?:{_LABEL}\.)+{_TLD}"
)

# What ends a URL in a text: blanks, quotes, brackets, control characters, punctuation of East Asian texts.
_URL_END = r"\s\x00-\x1f\x7f<>\"\u3000-\u303f\uff00-\uffef\ud800-\udfff"
_URL = re.compile(
    rf"(?i:(?:https?|ftps?|wss?)://[^{_URL_END}]+|(?<![\w@/.-])www\.[^{_URL_END}]+"
    rf"|(?<![\w@/.-])(?:{_LABEL}\.)+{_TLD}(?::[0-9]{{1,5}})?/[^{_URL_END}]*)"
)

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|0{0,2}[0-9]|0?[1-9][0-9])"
_IPV4 = re.compile(rf"(?<![0-9])(?<![0-9]\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?[0-9])")
_IPV6 = re.compile(
    r"(?<![\w:])(?:[0-9A-Fa-f]{1,4})?(?::[0-9A-Fa-f]{0,4}){2,8}(?:\.[0-9]{1,3}){0,3}"
    r"(?:%[0-9A-Za-z_]{1,16})?(?!\w)"
)

_MAC = re.compile(
    r"(?<![0-9A-Fa-f])(?<![0-9A-Fa-f][:-])"
    r"(?:[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){7}|(?:-[0-9A-Fa-f]{2}){7}"
    r"|(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})"
    r"|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4})(?![0-9A-Fa-f])"
)

_DIGITS = re.compile("[0-9]{2}")

#: Blanks and dashes that stand between the groups of a number.
_GAP = r"[ \u00a0\u202f\-\u2010-\u2015]"
_CARDS = [
    re.compile(rf"(?<![0-9]){groups}(?![0-9])")
    for groups in (
        # Other numbers are as long, such as times in milliseconds; so the first digits must fit, too.
        "(?:4[0-9]{12}|3[0-9]{13}|3[0-9]{14}|(?:1800|2131)[0-9]{11}|[0-9]{16}|[4-6][0-9]{16,18})",
        rf"[0-9]{{4}}(?:{_GAP}[0-9]{{4}}){{3}}",
        rf"[0-9]{{4}}(?:{_GAP}[0-9]{{4}}){{3}}{_GAP}[0-9]{{3}}",
        rf"[0-9]{{4}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4,5}}",
    )
]

_IBAN = re.compile(rf"(?<![A-Za-z0-9])[A-Za-z]{{2}}[0-9]{{2}}(?:{_GAP}?[A-Za-z0-9]){{11,30}}")
_PHONE = re.compile(rf"(?<![\w+])[+\uff0b]?[(]?[0-9](?:(?:{_GAP}|[./()]){{0,3}}[0-9]){{5,16}}(?![0-9])")


def luhn(digits: str) -> bool:
    """
    Tell whether the last digit is the check digit of the others.

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    doubled = "0246813579"
    total = 0
    for position, digit in enumerate(reversed(digits)):
        total += int(doubled[int(digit)] if position % 2 else digit)
    return total % 10 == 0


def _card(found: str) -> tuple[int, int] | None:
    digits = re.sub("[^0-9]", "", found)
    return (0, len(found)) if luhn(digits) and digits.strip("0") else None


def _url(found: str) -> tuple[int, int] | None:
    """Leave out the punctuation of the sentence behind a URL, and a bracket that it did not open."""
    end = len(found)
    while end:
        last = found[end - 1]
        opening = {")": "(", "]": "[", "}": "{"}.get(last)
        if opening is not None:
            if found.count(opening, 0, end) >= found.count(last, 0, end):
                break
        elif last not in ".,;:!?'`*_|":
            break
        end -= 1
    return (0, end) if end else None


def _ipv6(found: str) -> tuple[int, int] | None:
    """Leave out a colon of the sentence behind an address."""
    for end in (len(found), len(found) - 1):
        value = found[:end]
        try:
            ipaddress.IPv6Address(value)
        except ValueError:
            continue
        # "a::b" is more often a name in a program.
        if any(c.isdigit() for c in value) or value.count(":") > 3:
            return 0, end
    return None


def _iban(found: str) -> tuple[int, int] | None:
    is_valid = need("stdnum.iban", "redact").is_valid
    for end in range(len(found), 14, -1):
        if found[end - 1].isalnum() and is_valid(re.sub("[^A-Za-z0-9]", "", found[:end])):
            return 0, end
    return None


def phone_detector(region: str | None) -> Detector:
    """
    Return what finds phone numbers.

    Args:
        region: The country of numbers that do not say it, such as "DE"; None for numbers with ``+`` only.
    """
    phonenumbers: Any = need("phonenumbers", "redact-phone")

    def check(found: str) -> tuple[int, int] | None:
        for match in phonenumbers.PhoneNumberMatcher(found, region):
            return match.start, match.end
        return None

    return Detector(_PHONE, check, "0-9")


def standard_detectors(kind: str) -> list[Detector] | None:
    """Return what finds values of a known kind; None for a kind that is not known."""
    if kind == "iban":
        need("stdnum.iban", "redact")
        return [Detector(_IBAN, _iban, "0-9", _DIGITS)]
    if kind == "phone":
        return [phone_detector(None)]
    return _STANDARD.get(kind)


_STANDARD = {
    "email": [Detector(_EMAIL, None, "@", re.compile("@"))],
    "credit_card": [Detector(pattern, _card, "0-9", _DIGITS) for pattern in _CARDS],
    "ip": [
        Detector(_IPV4, None, "0-9", re.compile("[0-9][.][0-9]")),
        Detector(_IPV6, _ipv6, ":", re.compile(":")),
    ],
    "mac_address": [Detector(_MAC, None, r":.\-", re.compile("[0-9A-Fa-f]{2}[:-]|[0-9A-Fa-f]{4}[.]"))],
    "url": [Detector(_URL, _url, "/.", re.compile("/|[Ww]{3}[.]"))],
}
