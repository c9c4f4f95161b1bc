"""Load shedding: when the system is under pressure, refuse what matters least first. And limits that follow pressure.

A rate limiter asks what a caller has used; a shedder asks how busy *we* are, whoever is to blame. Both are needed.
"""

from penstock.shedding.admission import PRIORITIES, Admission
from penstock.shedding.scaled import Scaled
from penstock.shedding.shedder import Shedder
from penstock.shedding.signals import InFlight, LoopLag, Signal, Utilisation

__all__ = ["PRIORITIES", "Admission", "InFlight", "LoopLag", "Scaled", "Shedder", "Signal", "Utilisation"]
