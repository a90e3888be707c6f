"""Write the blocking shell from the asyncio one: ``python tools/unasync.py [--check]``.

The two differ by the words below and by ``world.py``, which each has of its own. ``--check`` writes
nothing and fails if a generated file is not what would be written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/twinbus/paired/aio"
TARGET = ROOT / "src/twinbus/paired/blocking"
BY_HAND = {"world.py"}
# So that a line of a trace, and a tab of an editor, says which of the two it is.
ENDING = "_blocking"

WORDS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\b__anext__\b", "__next__"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAwaitable\[(None|Any)\]", r"\1"),
    (r"import Awaitable, Callable\b", "import Callable"),
    (r"\bclose_async\b", "close"),
    (r"\bIdentifyingTransportAsync\b", "IdentifyingTransport"),
    (r"\bazure\.servicebus\.aio\.management\b", "azure.servicebus.management"),
    (r"\bazure\.servicebus\.aio\b", "azure.servicebus"),
    (r"\btwinbus\.paired\.aio\.(\w+)\b", rf"twinbus.paired.blocking.\1{ENDING}"),
    (r"import upkeep_aio as upkeep\b", "import upkeep"),
    (r"Many tasks may\b", "Many threads may"),
    (r"a hundred tasks\b", "a hundred threads"),
    (r"The asyncio shell\. The blocking one is generated from it", "The blocking shell, generated"),
)
NOTICE = "# Generated from ../aio/{name} by tools/unasync.py; change that file, not this one.\n"


def blocking(name: str, text: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return NOTICE.format(name=name) + text


def named(name: str) -> str:
    return name if name == "__init__.py" else name.replace(".py", f"{ENDING}.py")


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for source in sorted(SOURCE.glob("*.py")):
        if source.name in BY_HAND:
            continue
        target = TARGET / named(source.name)
        text = formatted(blocking(source.name, source.read_text()), target)
        if target.exists() and target.read_text() == text:
            continue
        stale.append(target.name)
        if not check:
            target.write_text(text)
    orphans = {path.name for path in TARGET.glob("*.py")} - {
        named(path.name) for path in SOURCE.glob("*.py")
    }
    if check and (stale or orphans):
        names = ", ".join([*stale, *sorted(orphans)])
        sys.exit(f"not current: {names}; run python tools/unasync.py")
    return 0


def formatted(text: str, path: Path) -> str:
    """Shorter words make shorter lines, which the formatter would join, and reorder imports."""
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [str(ruff), *arguments, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
