"""Optional packages: imported where they are used, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from toolnexus.errors import MissingExtraError

__all__ = ["need"]


def need(module: str, extra: str) -> ModuleType:
    """
    Import an optional module.

    Args:
        module: Its dotted name.
        extra: The extra of toolnexus that brings it.

    Returns:
        The module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there, and something that it needs itself is not
        raise MissingExtraError(
            f'this needs the package {module.split(".")[0]!r}: pip install "toolnexus[{extra}]"'
        ) from error
