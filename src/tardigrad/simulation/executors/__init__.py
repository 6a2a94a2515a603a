"""Executors: where trips are trained, and how one is chosen."""

from tardigrad.simulation.executors.choose import make_executor
from tardigrad.simulation.executors.protocol import Executor, TrainedTrip, TrainingJob

__all__ = ["Executor", "TrainedTrip", "TrainingJob", "make_executor"]
