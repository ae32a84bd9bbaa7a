"""What every test gets: a check for leaked threads, and the settings of hypothesis."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: Seconds that a thread of ours has to end after the test that started it.
GRACE = 2.0

#: Seconds that a slow test may take, unless it says otherwise with a mark of its own.
SLOW_TIMEOUT = 600

settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # the machine is shared, the data are not at fault
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time than quick ones, and refuse names that are another in each process."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(
                f"a parameter needs an id, or processes collect different tests: {item.nodeid}"
            )
        slow = item.get_closest_marker("slow") or item.get_closest_marker("llm")
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


def our_threads() -> set[threading.Thread]:
    """Return the live threads that toolnexus started."""
    return {t for t in threading.enumerate() if t.name.startswith("toolnexus-")}


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """Fail a test after which a thread of ours goes on."""
    before = our_threads()
    yield
    deadline = time.monotonic() + GRACE
    while (left := our_threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    if left:
        names = ", ".join(sorted(t.name for t in left))
        pytest.fail(f"threads of toolnexus outlive the test: {names}")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Return the folder of recorded answers beside the checkout; skip where it is absent."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip("no folder of recorded answers beside the checkout")
    return path
