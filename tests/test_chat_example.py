"""The example chat in a real browser: Flask's own server behind, a real Chromium in front."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolnexus import Client
from toolnexus.testing import ModelServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def url(server: ModelServer) -> Iterator[str]:
    pytest.importorskip("flask")
    from werkzeug.serving import make_server

    spec = importlib.util.spec_from_file_location("chat_app", ROOT / "examples/chat/app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with Client(base_url=server.base_url, model="m") as client:
        site = make_server("127.0.0.1", 0, module.make_app(client), threaded=True)
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}/"
        site.shutdown()
        site.server_close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):  # fmt: skip
        options.add_argument(flag)
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    service = webdriver.ChromeService(executable_path=driver, env=environment)
    browser = webdriver.Chrome(options=options, service=service)
    browser.set_window_size(900, 700)
    yield browser
    browser.quit()


def wait(seen: Callable[[], Any], what: str, seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = seen()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not see {what}")


def ask(browser: Any, url: str, prompt: str) -> None:
    if not browser.current_url.startswith(url):
        browser.get(url)
    field = browser.find_element("id", "prompt")
    field.send_keys(prompt)
    field.submit()


def texts(browser: Any, kind: str) -> list[str]:
    return [e.text for e in browser.find_elements("css selector", f"#log .{kind}")]


def test_text_arrives_in_pieces(server: ModelServer, url: str, browser: Any) -> None:
    """A half answer is on the page before the whole one is."""
    server.say([f"word{n} " for n in range(8)], delay=0.15)
    ask(browser, url, "Talk to me")
    seen: set[str] = set()

    def whole() -> bool:
        now = "".join(texts(browser, "answer"))
        seen.add(now)
        return "word7" in now

    wait(whole, "the whole answer")
    assert len({s for s in seen if s and "word7" not in s}) >= 2
    assert texts(browser, "you") == ["Talk to me"]


def test_a_tool_and_an_approval(server: ModelServer, url: str, browser: Any, tmp_path: Path) -> None:
    """A tool shows as a line, an approval as two buttons; a click lets the run go on."""
    server.call_many([("weather", {"city": "Rome"}), ("send_mail", {"to": "ada@example.com", "text": "Hi"})])
    server.say("All done.")
    ask(browser, url, "Weather, and a mail")
    button = wait(lambda: browser.find_elements("css selector", ".ask button"), "the buttons")[0]
    assert "Run send_mail?" in texts(browser, "ask")[0]
    assert any("sunny in Rome" in t for t in texts(browser, "tool"))
    browser.save_screenshot(str(tmp_path / "approval.png"))
    button.click()
    wait(lambda: "All done." in texts(browser, "answer"), "the answer")
    assert any("sent to ada@example.com" in t for t in texts(browser, "tool"))


def test_a_tab_that_is_closed_cancels_the_run(server: ModelServer, url: str, browser: Any) -> None:
    """The model's connection is closed soon after the tab is."""
    server.say(["first ", "second"], hold=True)
    ask(browser, url, "Talk")
    wait(lambda: any("first" in t for t in texts(browser, "answer")), "the first piece")
    browser.switch_to.new_window("tab")
    browser.switch_to.window(browser.window_handles[0])
    browser.close()
    browser.switch_to.window(browser.window_handles[0])
    server.wait_for_disconnect(timeout=10)


def test_a_failed_run_says_so(server: ModelServer, url: str, browser: Any) -> None:
    """The error of a run is shown in its own words."""
    server.fail(status=401, message="the key is wrong")
    ask(browser, url, "Hello")
    wait(lambda: texts(browser, "error") == ["the key is wrong"], "the error")
