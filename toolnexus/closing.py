"""What can be closed can be used in a ``with`` block."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Closing"]


class Closing:
    """The ``with`` block of a class whose ``close()`` ends it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it; doing so again changes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
