"""A real browser for tests of pages: chromium, started once per module, without network and with an empty profile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

ARTEFACTS = Path(__file__).parents[1] / "test-results"  # screenshots, for eyes
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, width: int = 1600, *, dark: bool = False) -> None:
        """From now on pages are seen like this."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def open(self, page: Path | str) -> None:
        """A page from disk, or at this address, once its charts are drawn."""
        self.driver.get(page if isinstance(page, str) else page.as_uri())
        self.until("return document.body.dataset.charts === 'drawn'")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, seconds: float = 60.0, *, expected: str = "\0") -> None:
        """Until this is true in the page. `expected`: what the page may complain of meanwhile has this in it."""
        end = time.monotonic() + seconds
        while not self.run(script):
            said = [message for message in self.console() if expected not in message]
            assert not said and time.monotonic() < end, f"never true: {script}; the console says {said}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Until all that was asked for is painted."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def console(self) -> list[str]:
        """What the page complained of since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def keep(self, name: str) -> Path:
        """A picture of the page, for whoever wants to see what was tested."""
        ARTEFACTS.mkdir(exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        assert self.driver.save_screenshot(str(path))
        return path


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """`profile`: an empty directory."""
    options = Options()
    for switch in (*SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
