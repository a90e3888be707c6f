"""Where a drill or a soak keeps its data."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from twinbus.errors import TwinbusError


class FolderError(TwinbusError):
    """It cannot be used; the text says why."""


def work_folder(stack: AsyncExitStack, keep: Path | None, name: str) -> Path:
    """A temporary one, or the one to keep, which must be new: what another run left there would be
    judged with this one."""
    if keep is None:
        made = tempfile.TemporaryDirectory(prefix=f"twinbus-{name}-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(made))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        taken = any(keep.iterdir())
    except OSError as error:
        raise FolderError(f"--keep {keep}: {error.strerror}") from error
    if taken:
        raise FolderError(f"--keep {keep}: the folder is not empty; name one that is, or a new one")
    return keep
