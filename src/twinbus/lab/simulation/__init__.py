"""The simulator: the real parts of Twinbus on a virtual clock, in a world that a seed describes."""

from twinbus.lab.simulation.plant import Plant
from twinbus.lab.simulation.scene import SeedReport, replay, run

__all__ = ["Plant", "SeedReport", "replay", "run"]
