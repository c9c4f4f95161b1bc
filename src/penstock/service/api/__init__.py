"""The decision API: HTTP and JSON, for any language. `Api` is the handler of all paths under `/v1/`."""

from penstock.service.api.authz import AuthzOptions
from penstock.service.api.handler import Api

__all__ = ["Api", "AuthzOptions"]
