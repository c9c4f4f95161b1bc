import pytest

from penstock import Quota
from penstock.errors import InvalidInput, InvalidQuota
from penstock.quota.text import SPELLINGS, UNITS, write_duration, write_period

ALGORITHMS = "fixed_window, sliding_window, rolling_window, token_bucket, gcra, leaky_bucket"
OPTIONS = f"{ALGORITHMS}, burst, queue, ttl, min_interval, penalty, count denied, starts, anchor, name"
UNIT_NAMES = "microsecond, millisecond, second, minute, hour, day, week"
NAMES = "a letter, then at most 63 letters, digits, or any of _ . : -"

READINGS = {
    # as the documentation writes them
    "100/minute": Quota(100, 60),
    "100 per minute": Quota(100, 60),
    "10/second burst 20": Quota(10, 1, "token_bucket", burst=20),
    "1000/5 minutes rolling_window": Quota(1000, 300, "rolling_window"),
    "500/hour gcra": Quota(500, 3600, "gcra"),
    "2/second min_interval 250ms": Quota(2, 1, min_interval=0.25),
    "5/15 minutes penalty 15m": Quota(5, 900, penalty=900),
    "100/minute count denied": Quota(100, 60, count_denied=True),
    # case and spaces are free, and hyphens are as good as underscores
    "100/MINUTE": Quota(100, 60),
    "  100 /\tminute\n": Quota(100, 60),
    "100 PER Minute": Quota(100, 60),
    "100/1minute": Quota(100, 60),
    "1000/5minutes Rolling-Window": Quota(1000, 300, "rolling_window"),
    "10/SECOND BURST 20": Quota(10, 1, burst=20),
    "2/second MIN-INTERVAL 250 MS": Quota(2, 1, min_interval=0.25),
    "100/minute Count Denied": Quota(100, 60, count_denied=True),
    "1_000/minute": Quota(1000, 60),
    # a name keeps its case
    "100/minute name Api:v1.logins-EU_x": Quota(100, 60, name="Api:v1.logins-EU_x"),
    "100/minute name gcra": Quota(100, 60, name="gcra"),
    # options in any order
    "5/minute name a count denied penalty 1h gcra min_interval 1s burst 7": Quota(
        5, 60, "gcra", burst=7, min_interval=1, penalty=3600, count_denied=True, name="a"
    ),
    # min_interval alone
    "min_interval 250ms": Quota(1, 0.25, "min_interval"),
    "min_interval 1s penalty 1m name x": Quota(1, 1, "min_interval", penalty=60, name="x"),
    # a separator at the end is harmless
    "100/minute;": Quota(100, 60),
    "100/minute , ": Quota(100, 60),
    # the edges of what can be kept
    "1/microsecond": Quota(1, 0.000_001),
    "4294967296/3650 days": Quota(2**32, 3650 * 86_400),
    "10000/day rolling_window": Quota(10_000, 86_400, "rolling_window"),
}

FAULTS = {
    "": 'ends too early (expected an amount, as in "100/minute")',
    "   ": 'ends too early (expected an amount, as in "100/minute")',
    ";": """unexpected ';' at column 1 (expected an amount, as in "100/minute")""",
    "100": 'ends too early (expected "/", "per" or "concurrent")',
    "100 minute": """unexpected 'minute' at column 5 (expected "/", "per" or "concurrent")""",
    "100/": f"ends too early (expected {UNIT_NAMES})",
    "100/5": f"ends too early (expected {UNIT_NAMES})",
    "100/fortnight": f"unknown unit 'fortnight' at column 5 (expected {UNIT_NAMES})",
    "100/Fortnight": f"unknown unit 'Fortnight' at column 5 (expected {UNIT_NAMES})",
    "100/minute100": f"unknown unit 'minute100' at column 5 (expected {UNIT_NAMES})",
    "100/month": """no fixed length: 'month' at column 5 (expected "30 days", or "month calendar UTC")""",
    "2/3 years": """no fixed length: 'years' at column 5 (expected "365 days", or "year calendar UTC")""",
    "many/minute": """unexpected 'many' at column 1 (expected an amount, as in "100/minute")""",
    "-5/minute": """unexpected '-' at column 1 (expected an amount, as in "100/minute")""",
    "1.5/minute": """unexpected '.' at column 2 (expected "/", "per" or "concurrent")""",
    "1e3/minute": """unexpected 'e3' at column 2 (expected "/", "per" or "concurrent")""",
    "nan/minute": """unexpected 'nan' at column 1 (expected an amount, as in "100/minute")""",
    "5/minute/hour": f"unknown word '/' at column 9 (expected {OPTIONS})",
    "5/minute sliding": f"unknown word 'sliding' at column 10 (expected {OPTIONS})",
    "5/minute 10/hour": f"unknown word '10' at column 10 (expected {OPTIONS})",
    "5/minute burst": "ends too early (expected a number of units)",
    "5/minute burst many": "unexpected 'many' at column 16 (expected a number of units)",
    "5/minute min_interval": 'ends too early (expected a duration, as in "250ms")',
    "5/minute min_interval 250": f"ends too early (expected {UNIT_NAMES})",
    "5/minute penalty soon": """unexpected 'soon' at column 18 (expected a duration, as in "250ms")""",
    "5/minute penalty 1 eon": f"unknown unit 'eon' at column 20 (expected {UNIT_NAMES})",
    "min_interval fast": """unexpected 'fast' at column 14 (expected a duration, as in "250ms")""",
    "5/minute count": 'ends too early (expected "denied")',
    "5/minute count sheep": """unexpected 'sheep' at column 16 (expected "denied")""",
    "5/minute name": f"ends too early (expected {NAMES})",
    "5/minute name 9lives": f"unusable name '9' at column 15 (expected {NAMES})",
    "5/minute name naïve": f"unusable name 'naïve' at column 15 (expected {NAMES})",
    "5/minute name _x": f"unusable name '_x' at column 15 (expected {NAMES})",
    f"5/minute name {'x' * 65}": f"unusable name '{'x' * 65}' at column 15 (expected {NAMES})",
    "5/minute gcra gcra": "repeated 'gcra' at column 15 (expected each option, and one algorithm, at most once)",
    "5/minute gcra token_bucket": (
        "repeated 'token_bucket' at column 15 (expected each option, and one algorithm, at most once)"
    ),
    "min_interval 1s gcra": "unexpected 'gcra' at column 17 (expected no algorithm: this kind of quota implies one)",
    "5/s burst 6 burst 6": "repeated 'burst' at column 13 (expected each option, and one algorithm, at most once)",
    "5/s penalty 1s Penalty 2s": (
        "repeated 'Penalty' at column 16 (expected each option, and one algorithm, at most once)"
    ),
    "5/s min_interval 1ms min_interval 1ms": (
        "repeated 'min_interval' at column 22 (expected each option, and one algorithm, at most once)"
    ),
    "5/s count denied count denied": (
        "repeated 'count' at column 18 (expected each option, and one algorithm, at most once)"
    ),
    "5/s name a name b": "repeated 'name' at column 12 (expected each option, and one algorithm, at most once)",
    "5/s;;6/minute": """unexpected ';' at column 5 (expected an amount, as in "100/minute")""",
    "5/s; many/minute": """unexpected 'many' at column 6 (expected an amount, as in "100/minute")""",
    "5/s, 6/parsec": f"unknown unit 'parsec' at column 8 (expected {UNIT_NAMES})",
    f"{10**20}/s": f"too many digits in '{10**20}' at column 1 (expected at most 20)",
    f"5/{10**20} s": f"too many digits in '{10**20}' at column 3 (expected at most 20)",
}

# What can be read, but not kept: the numbers are at fault, not the words.
UNKEEPABLE = {
    "0/minute": "limit 0: expected 1 to 4294967296",
    "4294967297/minute": "limit 4294967297: expected 1 to 4294967296",
    "99999999999999999999/minute": "limit 99999999999999999999: expected 1 to 4294967296",
    "10001/day rolling_window": ("limit 10001: expected 1 to 10000; sliding_window, token_bucket and gcra keep no log"),
    "0/day rolling_window": "limit 0: expected 1 to 10000",
    "5/0 seconds": "period of 0 microseconds: expected 1 microsecond to 3650 days",
    "5/3651 days": "period of 315446400000000 microseconds: expected 1 microsecond to 3650 days",
    "5/s min_interval 0ms": "min_interval of 0 microseconds: expected 1 microsecond to 3650 days",
    "5/s penalty 9999 weeks": "penalty of 6047395200000000 microseconds: expected 1 microsecond to 3650 days",
    "min_interval 0s": "period of 0 microseconds: expected 1 microsecond to 3650 days",
    "5/s burst 0": "burst 0: expected 1 to 4294967296",
    "5/s burst 4294967297": "burst 4294967297: expected 1 to 4294967296",
    "5/s fixed_window burst 6": "burst 6: fixed_window has no burst (expected token_bucket or gcra)",
    "5/s sliding_window burst 6": "burst 6: sliding_window has no burst (expected token_bucket or gcra)",
    "5/s rolling_window burst 6": "burst 6: rolling_window has no burst (expected token_bucket or gcra)",
    "min_interval 1s burst 6": "burst 6: min_interval has no burst (expected token_bucket or gcra)",
    "1/week burst 522": "burst 522 at 1/week: would take more than 3650 days to refill",
    "1/3650 days burst 2": "burst 2 at 1/3650 days: would take more than 3650 days to refill",
}


@pytest.mark.parametrize(("text", "quota"), READINGS.items())
def test_a_text_means_this_quota(text: str, quota: Quota) -> None:
    assert Quota.parse(text) is quota


@pytest.mark.parametrize("text", READINGS)
def test_what_a_quota_writes_reads_back_as_the_same_quota(text: str) -> None:
    quota = Quota.parse(text)
    assert Quota.parse(str(quota)) is quota


@pytest.mark.parametrize(("text", "fault"), FAULTS.items())
def test_a_fault_is_named_with_its_place_and_what_is_possible(text: str, fault: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(text)
    assert str(caught.value) == f'quota "{text}": {fault}'


@pytest.mark.parametrize(("text", "fault"), UNKEEPABLE.items())
def test_a_number_out_of_range_is_reported_with_its_range(text: str, fault: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(text)
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (5, 'quota 5: expected text such as "100/minute", not int'),
        (None, 'quota None: expected text such as "100/minute", not NoneType'),
        (b"5/s", """quota b'5/s': expected text such as "100/minute", not bytes"""),
        ("5/s" + " " * 1022, "quota text of 1025 characters: expected at most 1024"),
    ],
)
def test_overlong_text_is_not_parsed(given: str, fault: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(given)
    assert str(caught.value) == fault


@pytest.mark.parametrize("separator", [";", ",", " ; ", ", ", ";\n"])
@pytest.mark.parametrize("end", ["", ";", ", "])
def test_several_quotas_stand_in_one_text(separator: str, end: str) -> None:
    text = separator.join(["10/second", "1000/hour gcra", "min_interval 1ms"]) + end
    assert Quota.parse_all(text) == (Quota(10, 1), Quota(1000, 3600, "gcra"), Quota(1, 0.001, "min_interval"))


def test_one_quota_is_not_several() -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse("10/second; 1000/hour")
    expected = 'quota "10/second; 1000/hour": 2 quotas (expected one; Quota.parse_all reads several)'
    assert str(caught.value) == expected


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_every_spelling_of_a_unit_is_understood(spelling: str, name: str) -> None:
    assert Quota.parse(f"5/{spelling}").period_us == UNITS[name]
    assert Quota.parse(f"5/7 {spelling.upper() if spelling.isascii() else spelling}").period_us == 7 * UNITS[name]


@pytest.mark.parametrize("micro", ["\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}"])
def test_either_spelling_of_the_micro_sign_is_understood(micro: str) -> None:
    """Unicode normalisation, as many editors do it, turns the one into the other."""
    assert Quota.parse(f"5/{micro}s").period_us == 1


@pytest.mark.parametrize(
    "digit", ["\N{ARABIC-INDIC DIGIT FIVE}", "\N{FULLWIDTH DIGIT FIVE}", "\N{DEVANAGARI DIGIT FIVE}"]
)
def test_digits_are_those_of_ascii(digit: str) -> None:
    with pytest.raises(InvalidInput):
        Quota.parse(f"{digit}/minute")


@pytest.mark.parametrize(
    ("micros", "period", "duration"),
    [
        (1, "microsecond", "1us"),
        (250_000, "250 milliseconds", "250ms"),
        (1_000_000, "second", "1s"),
        (90_000_000, "90 seconds", "90s"),
        (900_000_000, "15 minutes", "15m"),
        (7_200_000_000, "2 hours", "2h"),
        (86_400_000_000, "day", "1d"),
        (1_209_600_000_000, "2 weeks", "2w"),
        (1_000_001, "1000001 microseconds", "1000001us"),
    ],
)
def test_times_are_written_in_the_largest_unit_that_divides(micros: int, period: str, duration: str) -> None:
    assert (write_period(micros), write_duration(micros)) == (period, duration)
