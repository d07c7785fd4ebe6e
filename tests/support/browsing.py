"""Run folders and a browser for the tests of the report page."""

import asyncio
import contextlib
import shutil
from pathlib import Path

from fedlane import Scenario, simulate
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from support.parts import missing

SETTINGS = ["learning.evaluate_every=3"]
PATIENCE_MS = 120_000
"""Timeout of browser actions, long enough for a machine that is busy with other tests."""


def save_run(
    folder: Path, scenario="quickstart", *, policy="lane", rounds=12, seeds=(0, 1), learning=True, settings=()
):
    """Write a run folder as `fedlane run` does."""
    loaded = Scenario.load(scenario).with_settings([*SETTINGS, *settings])
    run = simulate(loaded, policy=policy, rounds=rounds, seeds=list(seeds), learning=learning)
    run.save(folder)
    return run


def page_of(folder: Path, runs):
    """Write the page of run folders into a folder and return its address."""
    path = folder / "page.html"
    path.write_text(build_page(page_data(runs)))
    return path.as_uri()


@contextlib.contextmanager
def chromium():
    """Start the system's Chromium without a window."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        missing("Chromium is not installed (Debian: chromium)")
    try:
        from playwright.sync_api import expect, sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def shared_chromium():
    """Start a browser for many tests; yield a context manager that gives it to one of them.

    Playwright keeps its event loop running, suspended on a stack of its own, and `asyncio.run` then refuses to start
    another one in this thread. So the loop counts as running only while the browser is in use.
    """
    with chromium() as running:
        loop = asyncio.get_running_loop()

        @contextlib.contextmanager
        def in_use():
            asyncio._set_running_loop(loop)
            try:
                yield running
            finally:
                asyncio._set_running_loop(None)

        asyncio._set_running_loop(None)
        try:
            yield in_use
        finally:
            asyncio._set_running_loop(loop)


class Tab:
    """A browser tab that records its errors and requests."""

    def __init__(self, browser, url, *, width=1280, **options):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.requests, self.errors = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type != "log" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append("dialog"), dialog.dismiss()))
        self.page.goto(url)
        self._wait()

    def _wait(self):
        self.page.wait_for_selector("html[data-ready]")

    def screens(self, widths, themes=("light", "dark")):
        """Load the page again on every screen; yield its width."""
        for width in widths:
            for theme in themes:
                self.page.set_viewport_size({"width": width, "height": 900})
                self.page.emulate_media(color_scheme=theme)
                self.page.reload()
                self._wait()
                yield width

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def look_at_round(self, number):
        """Move the slider to position ``number`` (from 1)."""
        self.page.locator("#slider").fill(str(number))

    def links(self):
        """Links on the map: {(client, channel, punctual)}."""
        found = self.page.eval_on_selector_all(
            "#map .link", "links => links.map(l => [l.dataset.client, l.dataset.channel, l.classList.contains('late')])"
        )
        return {(int(client), int(channel), not late) for client, channel, late in found}

    def scroll_width(self):
        """Width of the page's content in pixels."""
        return self.page.evaluate("document.documentElement.scrollWidth")
