"""How a service runs: `load` makes immutable `Settings` of flags, environment, file and defaults."""

from penstock.service.listening import Address
from penstock.settings.loading import CONFIG, load
from penstock.settings.model import SETTINGS, Setting, Settings
from penstock.settings.values import hidden_url

__all__ = ["CONFIG", "SETTINGS", "Address", "Setting", "Settings", "hidden_url", "load"]
