"""Settings of the service: `load` reads flags, environment, file and defaults into immutable `Settings`."""

from penstock.service.settings.model import SETTINGS, Setting, Settings
from penstock.service.settings.sources import CONFIG, load
from penstock.service.settings.values import hidden_url
from penstock.service.sockets import ListenAddress

__all__ = ["CONFIG", "SETTINGS", "ListenAddress", "Setting", "Settings", "hidden_url", "load"]
