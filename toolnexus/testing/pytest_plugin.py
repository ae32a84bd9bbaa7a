"""
A pytest fixture with a scripted model server.

A ``conftest.py`` at the top of the tests turns it on::

    pytest_plugins = ["toolnexus.testing.pytest_plugin"]


    def test_my_agent(model_server):
        model_server.say("Hello")
        client = Client(base_url=model_server.base_url, style="openai", model="test", api_key="test-key")
        assert client.run("Hi").text == "Hello"
        model_server.assert_done()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from toolnexus.testing import ModelServer

__all__ = ["model_server"]


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """
    Yield a :class:`~toolnexus.testing.ModelServer` that is closed after the test.

    Its ``base_url`` is that of the "openai" style; ``model_server.url_for("anthropic")`` is another.
    """
    from toolnexus.testing import ModelServer

    with ModelServer() as server:
        yield server
