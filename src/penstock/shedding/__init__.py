"""Load shedding: when the system is under pressure, refuse what matters least first. And limits that follow pressure.

A rate limiter asks what a caller has used; a shedder asks how busy *we* are, whoever is to blame. Both are needed.
"""

from penstock.shedding.admission import Admission
from penstock.shedding.gauges import Signal
from penstock.shedding.in_flight import InFlight, Utilisation
from penstock.shedding.loop_lag import LoopLag
from penstock.shedding.priorities import PRIORITIES
from penstock.shedding.scaled import Scaled
from penstock.shedding.shedder import Shedder

__all__ = ["PRIORITIES", "Admission", "InFlight", "LoopLag", "Scaled", "Shedder", "Signal", "Utilisation"]
