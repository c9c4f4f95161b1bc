import penstock

PUBLIC = [
    "Amended",
    "AsyncLimiter",
    "Decision",
    "InvalidInput",
    "Limiter",
    "ManualClock",
    "PenstockError",
    "Quota",
    "RateLimited",
    "Receipt",
    "StoreError",
    "Verdict",
]


def test_the_public_names_are_these_and_no_others() -> None:
    assert penstock.__all__ == PUBLIC


def test_there_are_at_most_fifteen_public_names() -> None:
    assert len(penstock.__all__) <= 15


def test_every_public_name_exists() -> None:
    assert all(hasattr(penstock, name) for name in penstock.__all__)
