"""The rules of a redaction: what is protected, and what stands in its place."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from toolnexus.compose.detectors import Detector, phone_detector, standard_detectors
from toolnexus.compose.partial import Unsettled, analyse, combined
from toolnexus.errors import ConfigurationError, HookError, PIIDetectedError

__all__ = ["PII", "Finder", "Rules", "compiled"]

_ALIASES = {"card": "credit_card", "mac": "mac_address", "e-mail": "email"}
_DEFAULT = ("email", "credit_card", "ip", "mac_address", "url")
_KNOWN = (*_DEFAULT, "iban", "phone")
_STRATEGIES = ("redact", "mask", "hash", "block")

#: What a function of the user's gives: the values, or where they begin and end.
Found = Iterable["str | tuple[int, int]"]


@attrs.frozen(init=False)
class PII:
    """
    A rule: one kind of protected value.

    Args:
        kind: "email", "credit_card" (or "card"), "ip", "mac_address" (or "mac"), "url", "iban" (needs the
            extra ``redact``), "phone" (needs ``redact-phone``); or a word of your own, with a ``pattern``
            or a ``function``.
        strategy: What stands in the value's place: "redact", "mask" or "hash"; or "block", which ends the
            stream. By default that of `redact`.
        pattern: A regular expression that finds your values. How much of a stream must be held back is
            found out from it.
        function: A function of a text that returns the values in it, or pairs of where they begin and end.
        longest: The most characters of a value that the function finds, so that no more of a stream is
            held back. Without it, every message is held back to its end.
        replacement: What stands in the value's place with "redact", instead of ``[REDACTED_KIND]``.
        region: The country of phone numbers that do not say it, such as "DE".

    Raises:
        ConfigurationError: There is no such kind or strategy, or the rest does not fit.
        MissingExtraError: A package is missing.

    >>> PII("ticket", pattern="T-[0-9]+", strategy="hash").kind
    'ticket'
    """

    kind: str
    strategy: str | None
    replacement: str | None
    detectors: tuple[Detector, ...] = attrs.field(repr=False)
    function: Callable[[str], Found] | None = attrs.field(repr=False)
    longest: int | None = attrs.field(repr=False)

    def __init__(
        self,
        kind: str,
        *,
        strategy: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        function: Callable[[str], Found] | None = None,
        longest: int | None = None,
        replacement: str | None = None,
        region: str | None = None,
    ) -> None:
        if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z][\w-]*", kind):
            raise ConfigurationError(f"the kind of a rule must be a word, not {kind!r}")
        kind = _ALIASES.get(kind.lower(), kind.lower())
        if strategy is not None:
            check_strategy(strategy)
        _check_own(kind, pattern, function, longest, region)
        detectors = () if function is not None else _detectors(kind, pattern, region)
        self.__attrs_init__(kind, strategy, replacement, tuple(detectors), function, longest)


def check_strategy(strategy: Any) -> None:
    """Raise a `ConfigurationError` if there is no such strategy."""
    if strategy not in _STRATEGIES:
        raise ConfigurationError(f"strategy must be one of {', '.join(_STRATEGIES)}, not {strategy!r}")


def _check_own(kind: str, pattern: Any, function: Any, longest: Any, region: Any) -> None:
    if pattern is not None and function is not None:
        raise ConfigurationError("a rule has a pattern or a function, not both")
    if pattern is None and function is None and kind not in _KNOWN:
        raise ConfigurationError(
            f"unknown kind {kind!r}: there are {', '.join(_KNOWN)}; another one needs a pattern or a function"
        )
    if function is not None and not callable(function):
        raise ConfigurationError(f"the function of a rule must be callable, not {function!r}")
    if longest is not None and (function is None or not isinstance(longest, int) or longest < 1):
        raise ConfigurationError("longest must be a positive number, and belongs to a function")
    if region is not None and kind != "phone":
        raise ConfigurationError("region belongs to the kind 'phone'")


def _detectors(kind: str, pattern: str | re.Pattern[str] | None, region: str | None) -> list[Detector]:
    if pattern is None:
        found = [phone_detector(region)] if kind == "phone" else standard_detectors(kind)
        assert found is not None
        return found
    try:
        compiled_pattern = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"the pattern of {kind!r} is no regular expression: {error}") from error
    if not isinstance(compiled_pattern.pattern, str):
        raise ConfigurationError(f"the pattern of {kind!r} must be one for text, not bytes")
    return [Detector(compiled_pattern)]


class Finder:
    """
    Finds the values of one rule, one way, and knows what stands in their place.

    Args:
        rule: The rule.
        detector: The way; None for the rule's function.
        replace: What stands in the place of a value.
        unsettled: Where the detector's pattern is not settled; None where that is not known.
    """

    def __init__(
        self,
        rule: PII,
        detector: Detector | None,
        replace: Callable[[str], str],
        unsettled: Unsettled | None,
    ) -> None:
        self.kind = rule.kind
        self.replace = replace
        self.unsettled = unsettled
        self.longest = rule.longest
        self._detector = detector
        self._function = rule.function

    @property
    def hint(self) -> str | None:
        """A class of characters of which each value has one, or None."""
        return self._detector.hint if self._detector is not None else None

    def values(self, text: str, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """
        Find the values whose candidates begin within a part of a text.

        Yields:
            Where the candidate begins, where the value begins, and where it ends.
        """
        if self._detector is None:
            yield from self._called(text, start)
            return
        search, check, sign = self._detector.pattern.search, self._detector.check, self._detector.sign
        if sign is not None and sign.search(text, start) is None:
            return
        while start < stop:
            match = search(text, start)
            if match is None or match.start() >= stop:
                return
            begin, end = match.span()
            if begin == end:
                start = end + 1
                continue
            within = check(match.group()) if check is not None else (0, end - begin)
            if within is None:
                start = begin + 1
                continue
            start = begin + within[1]
            yield begin, begin + within[0], start

    def _called(self, text: str, start: int) -> Iterator[tuple[int, int, int]]:
        assert self._function is not None
        try:
            spans = sorted(_spans(text, self._function(text)))
        except Exception as error:
            raise HookError(
                f"the function of the rule {self.kind!r} raised {type(error).__name__}"
            ) from error
        for begin, end in spans:
            if end > start:
                yield max(begin, start), max(begin, start), end


def _spans(text: str, found: Found) -> Iterator[tuple[int, int]]:
    for item in found:
        if isinstance(item, str):
            begin = text.find(item) if item else -1
            while begin >= 0:
                yield begin, begin + len(item)
                begin = text.find(item, begin + len(item))
        else:
            begin, end = item
            if not 0 <= begin <= end <= len(text):
                raise ValueError("a span outside the text")
            if begin < end:
                yield begin, end


@attrs.frozen(eq=False)
class Rules:
    """
    The rules of a redaction, ready to use.

    Args:
        finders: What finds values.
        unsettled: Matches where the end of a text is not settled; None where all must be held back.
        wide: The same for those values only in which there may be blanks; None where there are none.
        wide_hints: Matches a character that stands before the first blank of such a value; None where
            there is no such.
        longest: The most characters that a value of a function has, or 0.
        hints: Matches a character without which there is no value; None where there is no such.
        behind: How many characters before a value matter.
        lenient: The same rules, but what would block is redacted.
    """

    finders: tuple[Finder, ...]
    unsettled: re.Pattern[str] | None
    wide: re.Pattern[str] | None
    wide_hints: re.Pattern[str] | None
    longest: int
    hints: re.Pattern[str] | None
    behind: int
    lenient: Rules | None = None


def compiled(
    rules: tuple[Any, ...], strategy: str = "redact", replacement: str | None = None, key: str | None = None
) -> Rules:
    """
    Make rules ready.

    Raises:
        ConfigurationError: One of them is no rule.
    """
    check_strategy(strategy)
    if key is not None and not isinstance(key, str):
        raise ConfigurationError("key must be a text")
    chosen = [_rule(item, replacement) for item in rules or _DEFAULT]
    lenient = None
    if any((rule.strategy or strategy) == "block" for rule in chosen):
        lenient = _compiled(chosen, strategy, key, None, lenient=True)
    return _compiled(chosen, strategy, key, lenient, lenient=False)


def _rule(item: Any, replacement: str | None) -> PII:
    rule = PII(item) if isinstance(item, str) else item
    if not isinstance(rule, PII):
        raise ConfigurationError(f"a rule must be a kind or a PII, not {item!r}")
    if rule.replacement is not None or replacement is None:
        return rule
    changed = PII.__new__(PII)
    changed.__attrs_init__(rule.kind, rule.strategy, replacement, rule.detectors, rule.function, rule.longest)
    return changed


def _compiled(
    rules: list[PII], strategy: str, key: str | None, lenient_rules: Rules | None, *, lenient: bool
) -> Rules:
    finders = []
    for rule in rules:
        chosen = rule.strategy or strategy
        if lenient and chosen == "block":
            chosen = "redact"
        replace = _replacer(rule, chosen, key)
        for detector in rule.detectors or (None,):
            unsettled = analyse(detector.pattern) if detector is not None else None
            finders.append(Finder(rule, detector, replace, unsettled))
    known = tuple(f.unsettled for f in finders if f.unsettled is not None)
    all_known = all(f.unsettled is not None or f.longest is not None for f in finders)
    wide = [f for f in finders if f.unsettled is not None and not f.unsettled.solid]
    longest = max((f.longest or 0 for f in finders), default=0)
    return Rules(
        finders=tuple(finders),
        unsettled=combined(known) if all_known else None,
        wide=combined(tuple(f.unsettled for f in wide if f.unsettled is not None)) if wide else None,
        wide_hints=_hints(wide),
        longest=longest,
        hints=_hints(finders),
        behind=max([longest, *(one.behind for one in known)]),
        lenient=lenient_rules,
    )


def _hints(finders: list[Finder]) -> re.Pattern[str] | None:
    hints = dict.fromkeys(finder.hint for finder in finders)
    return re.compile(f"[{''.join(map(str, hints))}]") if hints and None not in hints else None


def _replacer(rule: PII, strategy: str, key: str | None) -> Callable[[str], str]:
    if strategy == "redact":
        text = rule.replacement if rule.replacement is not None else f"[REDACTED_{rule.kind.upper()}]"
        return lambda value: text
    if strategy == "mask":
        return _MASKS.get(rule.kind, _last_four)
    if strategy == "hash":
        return lambda value: f"<{rule.kind}_hash:{_digest(value, key)}>"

    def block(value: str) -> str:
        raise PIIDetectedError(f"the stream holds a value of the kind {rule.kind!r}", pii_type=rule.kind)

    return block


def _digest(value: str, key: str | None) -> str:
    data = value.encode("utf-8", "surrogatepass")
    if key is not None:
        return hmac.new(key.encode(), data, "sha256").hexdigest()[:8]
    return hashlib.sha256(data).hexdigest()[:8]


# -- masks -----------------------------------------------------------------------------------


def _last_four(value: str) -> str:
    """
    Keep the last four characters.

    >>> _last_four("T-12345"), _last_four("1234")
    ('****2345', '****')
    """
    return "****" + (value[-4:] if len(value) > 4 else "")


def _mask_email(value: str) -> str:
    """
    Keep the name and the top-level domain.

    >>> _mask_email("ada@mail.example.com")
    'ada@****.com'
    """
    name, _, domain = value.rpartition("@")
    return f"{name}@****.{domain.rpartition('.')[2]}"


def _mask_card(value: str) -> str:
    """
    Keep the last four digits, and what stands between the groups.

    >>> _mask_card("4532-0151-1283-0366")
    '****-****-****-0366'
    """
    left = sum(c.isdigit() for c in value) - 4
    masked = []
    for char in value:
        hide = char.isdigit() and left > 0
        left -= char.isdigit()
        masked.append("*" if hide else char)
    return "".join(masked)


def _mask_ip(value: str) -> str:
    """
    Keep the last part.

    >>> _mask_ip("192.168.0.17"), _mask_ip("2001:db8::17")
    ('*.*.*.17', '****:17')
    """
    if ":" in value:
        return "****:" + value.rpartition(":")[2]
    return "*.*.*." + value.rpartition(".")[2]


def _mask_mac(value: str) -> str:
    """
    Keep the last pair.

    >>> _mask_mac("00:1A:2B:3C:4D:5E"), _mask_mac("001a.2b3c.4d5e")
    ('**:**:**:**:**:5E', '****.****.**5e')
    """
    return re.sub("[0-9A-Fa-f]", "*", value[:-2]) + value[-2:]


_MASKS: dict[str, Callable[[str], str]] = {
    "email": _mask_email,
    "credit_card": _mask_card,
    "ip": _mask_ip,
    "mac_address": _mask_mac,
    "url": lambda value: "[MASKED_URL]",
}
