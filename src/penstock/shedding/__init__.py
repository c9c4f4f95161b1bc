"""Load shedding: under pressure, refuse the least important requests first. Also limits that follow pressure.

A rate limiter looks at what one caller has used; a shedder looks at how busy this system is, whatever the cause.
"""

from penstock.shedding.admission import PRIORITIES, Admission
from penstock.shedding.scaled import Scaled
from penstock.shedding.shedder import Shedder
from penstock.shedding.signals import InFlight, LoopLag, Signal, Utilisation

__all__ = ["PRIORITIES", "Admission", "InFlight", "LoopLag", "Scaled", "Shedder", "Signal", "Utilisation"]
