"""Histories: lists of steps drawn by a seed, and what it means to play one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from twinbus.lab.model import admin_steps, client_steps, many_steps, request_steps, settling_steps
from twinbus.lab.model.play import Play, Played
from twinbus.lab.model.things import Wrong

Step = tuple[Any, ...]


# Each step, how often of so many it is drawn, and how many numbers it takes.
STEPS: dict[str, tuple[int, Callable[..., None], int]] = {
    "send": (22, client_steps.send, 5),
    "receive": (14, client_steps.receive, 4),
    "credit": (10, client_steps.credit, 2),
    "drain": (3, client_steps.drain, 1),
    "lose": (2, client_steps.lose, 3),
    "leave": (4, client_steps.leave, 1),
    "disconnect": (2, client_steps.disconnect, 1),
    "settle": (26, settling_steps.settle, 4),
    "stale": (2, settling_steps.stale, 1),
    "renew": (3, request_steps.renew, 1),
    "schedule": (5, request_steps.schedule, 4),
    "cancel": (3, request_steps.cancel, 3),
    "deferred": (5, request_steps.deferred, 3),
    "peek": (4, request_steps.peek, 3),
    "purge": (2, request_steps.purge, 4),
    "state": (9, request_steps.state, 3),
    "read_state": (2, request_steps.read_state, 2),
    "renew_session": (3, request_steps.renew_session, 2),
    "wait": (10, client_steps.wait, 2),
    "delete": (1, admin_steps.delete, 1),
    "update": (4, admin_steps.update, 3),
    "rules": (2, admin_steps.rules, 2),
    "sessions": (2, request_steps.sessions, 2),
    "hostile": (2, client_steps.hostile, 3),
    "batch": (4, many_steps.batch, 5),
    "schedule_many": (3, many_steps.schedule, 4),
    "settle_range": (4, many_steps.settle_range, 4),
    "settle_tokens": (4, many_steps.settle_tokens, 4),
    "deferred_many": (4, many_steps.deferred, 4),
    "together": (6, settling_steps.together, 3),
}


def play_step(play: Play, step: Step) -> None:
    """Play it on both. Raises Wrong where they differ."""
    name, *numbers = step
    STEPS[name][1](play, *numbers)
    play.settle_up()


def finding(
    steps: Sequence[Step], counts: Played | None = None, begin: Callable[[], Play] = Play
) -> str | None:
    """Play a history from the beginning; what it found, if it found something."""
    play = begin()
    if counts is not None:
        play.played = counts
    try:
        for step in steps:
            play_step(play, step)
        play.at_rest()
    except Wrong as wrong:
        return str(wrong)
    finally:
        play.close()
    return None


def history(seed: int, length: int, but: Sequence[str] = ()) -> list[Step]:
    rng = random.Random(seed)  # noqa: S311 - not a secret
    steps = {name: weight for name, (weight, _, _) in STEPS.items() if name not in but}
    names = rng.choices(list(steps), list(steps.values()), k=length)
    return [(name, *(rng.randrange(100) for _ in range(STEPS[name][2]))) for name in names]
