"""How a service runs: `load` makes immutable `Settings` of flags, environment, file and defaults."""

from penstock.service.settings.model import SETTINGS, Setting, Settings
from penstock.service.settings.sources import CONFIG, load
from penstock.service.settings.values import hidden_url
from penstock.service.sockets import ListenAddress

__all__ = ["CONFIG", "SETTINGS", "ListenAddress", "Setting", "Settings", "hidden_url", "load"]
