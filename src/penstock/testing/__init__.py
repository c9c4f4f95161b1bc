"""What a store needs to prove itself; needs `penstock[testing]`.

- `StoreConformance`, `AsyncStoreConformance`: pytest classes to subclass; see `penstock.testing.conformance`.
- `Oracle`: the brute-force model they compare a store with, for tests of your own.
- `CallHistory` in `penstock.testing.history`: whether what callers saw could have been decided by an exact limiter.
"""

import pytest

# Before they are imported, so that a failing assert in the kit shows its values.
pytest.register_assert_rewrite(
    *(f"penstock.testing.{module}" for module in ("agreement", "examples", "kit", "machine", "promises"))
)

from penstock.testing.conformance import AsyncStoreConformance, StoreConformance  # noqa: E402
from penstock.testing.oracle import Oracle  # noqa: E402

__all__ = ["AsyncStoreConformance", "Oracle", "StoreConformance"]
