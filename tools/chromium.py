"""Debian's Chromium, for the tests that drive a browser: found, or installed.

Run by `make unit`. No browser is ever downloaded from anywhere but the system's own packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """``TWINBUS_CHROMIUM`` says which, if it is not on the path."""
    told = os.environ.get("TWINBUS_CHROMIUM")
    return told or next(filter(None, map(shutil.which, NAMES)), None)


def install() -> str | None:
    """None if it worked, else a sentence."""
    if shutil.which("apt-get") is None:
        return "install Chromium and put it on the path, or name it with TWINBUS_CHROMIUM"
    sudo = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    if sudo and subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode:
        return "run: sudo apt-get install --yes chromium"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        done = subprocess.run(
            [*sudo, "apt-get", *words], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            return f"apt-get {words[0]} failed: {said[-1]}"
    return None


def main() -> int:
    if find() is None:
        print("installing Chromium for the browser tests", file=sys.stderr)
        problem = install()
        if problem:
            print(f"the browser tests need Chromium, and there is none; {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
