"""Play many histories: ``python tools/model.py --seeds 0-999 --steps 100``."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from twinbus.lab.model import killing
from twinbus.lab.model.histories import finding, history
from twinbus.lab.model.play import Played
from twinbus.lab.model.shrink import as_test, shortest

Counted = tuple[int, str | None, Played]


def played(seed: int, length: int) -> Counted:
    counts = Played()
    return seed, finding(history(seed, length), counts), counts


def killed(seed: int, length: int) -> Counted:
    counts = Played()
    return seed, killing.finding(killing.killing(seed, length), counts), counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-999", help="from-to")
    parser.add_argument("--steps", type=int, default=100, help="of each history")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--killed", action="store_true", help="a process, by kill -9")
    asked = parser.parse_args(arguments)
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    play = killed if asked.killed else played
    began, total, failed = time.monotonic(), Played(), []
    with ProcessPoolExecutor(asked.workers) as pool:
        lengths = [asked.steps] * len(seeds)
        for seed, said, counts in pool.map(play, seeds, lengths, chunksize=5):
            total.add(counts)
            if said is not None:
                failed.append(seed)
                print(f"seed {seed}: {said}", flush=True)
    took_s = time.monotonic() - began
    print(
        f"{len(seeds)} histories, {total.steps} steps, {total.deliveries} deliveries, "
        f"{total.crashes} crashes, {total.refusals} commits and {total.unread} reads "
        f"refused by the disk, in {took_s:.0f} s "
        f"({total.steps / took_s * 60:,.0f} steps a minute): {len(failed)} found something"
    )
    if failed and not asked.killed:  # which is not the same twice
        steps = shortest(history(failed[0], asked.steps))
        print(f"\nThe shortest of seed {failed[0]}, as a test:\n")
        print(as_test(f"seed_{failed[0]}", steps, finding(steps) or ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
