"""The simulator: the real parts of Twinbus on a virtual clock, in a world that a seed describes."""

from twinbus.lab.simulation.bugs import Bug
from twinbus.lab.simulation.scene import SeedReport, replay, run

__all__ = ["Bug", "SeedReport", "replay", "run"]
