import copy
import pickle

import pytest

from penstock import Limiter, ManualClock, RateLimited, StoreError, errors

CALLERS_FAULT = [
    errors.InvalidQuota,
    errors.InvalidKey,
    errors.InvalidCost,
    errors.CostExceedsLimit,
    errors.InvalidRequest,
    errors.InvalidReceipt,
    errors.InvalidOption,
]


def refused() -> RateLimited:
    limiter = Limiter(clock=ManualClock(1_700_000_040))
    limiter.acquire("s3cret", "1/minute fixed_window")
    return RateLimited(limiter.acquire("s3cret", "1/minute fixed_window"))


@pytest.mark.parametrize("kind", CALLERS_FAULT)
def test_a_callers_fault_is_invalid_input_and_a_value_error(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.InvalidInput)
    assert issubclass(kind, ValueError)
    assert issubclass(kind, errors.PenstockError)


@pytest.mark.parametrize("kind", [RateLimited, StoreError])
def test_a_refusal_and_a_store_error_are_no_value_errors(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.PenstockError)
    assert not issubclass(kind, ValueError)


def test_a_cost_that_never_fits_is_a_kind_of_invalid_cost() -> None:
    assert issubclass(errors.CostExceedsLimit, errors.InvalidCost)


def test_the_docstring_draws_every_exception() -> None:
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [name for name in kinds if name not in (errors.__doc__ or "")] == []


def test_rate_limited_names_the_quota_and_the_wait() -> None:
    assert str(refused()) == "refused by 1/minute fixed_window: retry after 60.000 s"


def test_rate_limited_carries_the_verdict() -> None:
    assert refused().verdict.retry_after == 60


def test_rate_limited_never_shows_the_key() -> None:
    error = refused()
    assert "s3cret" not in f"{error} {error!r} {error.args}"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_rate_limited_survives_pickling_with_its_verdict(protocol: int) -> None:
    error = refused()
    again = pickle.loads(pickle.dumps(error, protocol))
    assert isinstance(again, RateLimited)
    assert (str(again), again.verdict) == (str(error), error.verdict)
    assert type(again.verdict) is type(error.verdict)


def test_rate_limited_can_be_copied() -> None:
    error = refused()
    assert copy.deepcopy(error).verdict == copy.copy(error).verdict == error.verdict


@pytest.mark.parametrize("transient", [True, False])
def test_a_store_error_states_whether_a_retry_may_help(transient: bool) -> None:
    error = StoreError("the store is gone", transient=transient)
    assert (str(error), error.transient) == ("the store is gone", transient)


@pytest.mark.parametrize("transient", [True, False])
def test_a_store_error_survives_pickling(transient: bool) -> None:
    error = pickle.loads(pickle.dumps(StoreError("the store is gone", transient=transient)))
    assert (str(error), error.transient) == ("the store is gone", transient)
