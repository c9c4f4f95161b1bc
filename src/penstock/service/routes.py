"""Route calls to handlers by path. A batch is split, so that each handler gets its calls as one batch."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.service.wire.calls import Call, Handler


class Routes:
    """A handler that delegates: by `exact` path, else by the longest prefix in `under`, else to `otherwise`."""

    def __init__(self, exact: Mapping[bytes, Handler], under: Mapping[bytes, Handler], otherwise: Handler) -> None:
        self._exact = dict(exact)
        self._under = sorted(under.items(), key=lambda item: len(item[0]), reverse=True)
        self._otherwise = otherwise

    def handle(self, calls: list[Call]) -> None:
        shares: dict[Handler, list[Call]] = {}
        for call in calls:
            handler = self._exact.get(call.path) or self._of(call.path)
            if handler in shares:
                shares[handler].append(call)
            else:
                shares[handler] = [call]
        for handler, share in shares.items():
            handler.handle(share)

    def _of(self, path: bytes) -> Handler:
        return next((handler for prefix, handler in self._under if path.startswith(prefix)), self._otherwise)
