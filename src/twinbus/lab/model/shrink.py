"""From a history that finds something to the shortest that still finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twinbus.lab.model.histories import Step, finding

Found = Callable[[Sequence[Step]], str | None]


def shortest(steps: Sequence[Step], found: Found = lambda steps: finding(steps)) -> list[Step]:
    """Steps are taken out, many at a time and then one by one, as long as there is a finding.

    Any finding will do: what is looked for is a history that a person can read.
    """
    left = list(steps)
    size = max(1, len(left) // 2)
    while True:
        at, smaller = 0, False
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if found(fewer) is not None:
                left, smaller = fewer, True
            else:
                at += size
        if size == 1 and not smaller:
            return left
        size = max(1, size // 2)


def as_test(name: str, steps: Sequence[Step], said: str) -> str:
    """A test to paste, which fails as long as the finding is there."""
    lines = [f"        {step!r}," for step in steps]
    return "\n".join(
        [
            f"def test_{name}() -> None:",
            f'    """{said[:90]}"""',
            "    steps = [",
            *lines,
            "    ]",
            "    assert finding(steps) is None",
        ]
    )
