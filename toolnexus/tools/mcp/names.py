"""Names for the model: one for each tool of each server, and it stays."""

from __future__ import annotations

from collections.abc import Iterable

from toolnexus.tools.names import sanitize, valid_name

__all__ = ["NameBook"]

Key = tuple[str, str]


class NameBook:
    """
    Gives each tool of each server its name, and never another one.

    A name is ``server_tool``. One that is too long or taken gets a short hash at its end. A tool keeps
    its name as long as the book lives, whatever comes and goes.

    >>> NameBook().assign([("mail", "send"), ("mail", "list.all")])
    {('mail', 'send'): 'mail_send', ('mail', 'list.all'): 'mail_list_all'}
    """

    def __init__(self) -> None:
        self._names: dict[Key, str] = {}
        self._taken: set[str] = set()

    def assign(self, keys: Iterable[Key]) -> dict[Key, str]:
        """Return the names of these tools, each given as server and tool, in their order."""
        wanted = list(keys)
        texts = {key: _text(key) for key in wanted if key not in self._names}
        # Those that need no change come first: they may have the plain name.
        for key in sorted(texts, key=lambda key: sanitize(texts[key]) != texts[key]):
            self._names[key] = valid_name(texts[key], self._taken)
            self._taken.add(self._names[key])
        return {key: self._names[key] for key in wanted}


def _text(key: Key) -> str:
    """Return what a tool is called before it is made valid; some providers want a letter first."""
    text = "_".join(key)
    return text if (text[:1].isalpha() and text[:1].isascii()) or text.startswith("_") else f"_{text}"
