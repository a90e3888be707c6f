"""``python -m twinbus``, and the file to hand to spark-submit: the same commands as ``twinbus``."""

from __future__ import annotations

from twinbus.cli import main

if __name__ == "__main__":
    main()
