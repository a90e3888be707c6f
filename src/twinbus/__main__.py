"""`python -m twinbus`, and what spark-submit is given: the same commands as `twinbus`."""

from __future__ import annotations

import sys
from pathlib import Path

# A script's own folder comes first on the path, and this one is full of modules with plain names.
sys.path[:] = [
    folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).parent
]

from twinbus.cli import main  # noqa: E402  only now is it sure where it comes from

if __name__ == "__main__":
    main()
