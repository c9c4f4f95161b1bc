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
        first = self._of(calls[0].path)
        shares: dict[Handler, list[Call]] = {first: calls}
        if len(calls) > 1 and any(self._of(call.path) is not first for call in calls):
            shares = {}
            for call in calls:
                shares.setdefault(self._of(call.path), []).append(call)
        for handler, share in shares.items():
            handler.handle(share)

    def _of(self, path: bytes) -> Handler:
        handler = self._exact.get(path)
        if handler is None:
            handler = next((one for prefix, one in self._under if path.startswith(prefix)), self._otherwise)
        return handler
