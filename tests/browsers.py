"""A real browser for tests, and what must hold of every page whatever is on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from tools.chromium import find


@contextmanager
def chromium() -> Iterator[Browser]:
    path = find()
    assert path, "there is no Chromium: python tools/chromium.py"
    # Root may not use Chromium's sandbox, and only our own pages are opened.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()


_RULES = Path(__file__).with_name("page_rules.js").read_text()


def faults_of(page: Page) -> list[str]:
    """What is wrong with a page for those who do not see it, or not well. After axe's rules."""
    found: list[str] = page.evaluate(_RULES)
    return found


def is_wider_than_the_window(page: Page) -> bool:
    wide: bool = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    return wide


def ground(page: Page) -> Any:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")
