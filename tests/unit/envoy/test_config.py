"""Files of envoyproxy/ratelimit: what they say is found as that service finds it."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRules
from penstock.quota import Quota
from penstock.service.envoy import config_files
from penstock.service.envoy.config import Config, Entry, Pattern
from penstock.service.envoy.config_files import File, Options, read

NESTED = """
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    rate_limit: {unit: SECOND, requests_per_unit: 500}
  - key: message_type
    rate_limit: {unit: week, requests_per_unit: 9}
    descriptors:
      - {key: to_number, rate_limit: {unit: day, requests_per_unit: 100}}
      - {key: to_number, value: "+1*", rate_limit: {unit: hour, requests_per_unit: 3}}
      - {key: to_number, value: "+1555*", rate_limit: {unit: hour, requests_per_unit: 4}}
      - {key: to_number, value: "+15550100"}
"""


def config(*texts: str, options: Options | None = None) -> Config:
    files = [File(f"{at}.yaml", text.encode()) for at, text in enumerate(texts)]
    return read(files, options or Options())


def limit(domain: str, *entries: Entry, of: Config | None = None) -> int | None:
    found = (of or config(NESTED)).find(domain, entries)
    return None if found is None else found.limit.requests


def faults(*texts: str, options: Options | None = None) -> list[str]:
    with pytest.raises(InvalidRules) as caught:
        config(*texts, options=options)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("entries", "requests"),
    [
        ([("database", "users")], 500),
        ([("database", "default")], 500),
        ([("database", "other")], None),
        ([("message_type", "marketing")], 9),
        ([("message_type", "marketing"), ("to_number", "2061234567")], 100),
        ([("message_type", "marketing"), ("to_number", "+15551234")], 3),  # the first pattern, not the longest
        ([("message_type", "marketing"), ("to_number", "+15550100")], None),  # let pass: neither limit nor more
        ([("message_type", "marketing"), ("to_number", "1"), ("more", "x")], None),  # deeper than the file
        ([("to_number", "2061234567")], None),
        ([], None),
    ],
)
def test_a_limit_is_found_by_value_then_pattern_then_key(entries: list[Entry], requests: int | None) -> None:
    assert limit("mongo_cps", *entries) == requests


def test_an_unknown_domain_has_no_limits() -> None:
    assert limit("other", ("database", "users")) is None


def test_names_do_not_run_together() -> None:
    of = config("domain: d\ndescriptors: [{key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}]")
    assert limit("d", ("a_b", "c"), of=of) == 1
    assert limit("d", ("a", "b"), of=of) is None


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("*", ["", "x"], []),
        ("a*", ["a", "abc"], ["", "ba"]),
        ("*a", ["a", "ba"], ["ab"]),
        ("a*b", ["ab", "axb", "abab"], ["a", "b", "abx"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("a*b*c", ["abc", "axbyc", "abbc"], ["acb", "ac", "abxb"]),
        ("a**b", ["ab", "a-b"], ["a"]),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, fitting: list[str], other: list[str]) -> None:
    assert all(Pattern(pattern).fits(value) for value in fitting)
    assert not any(Pattern(pattern).fits(value) for value in other)


def test_every_descriptor_counts_for_itself_unless_a_pattern_shares() -> None:
    of = config("""
        domain: d
        descriptors:
          - {key: path, value: "/a/*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: path, value: "/b/*", rate_limit: {unit: day, requests_per_unit: 1}}
    """)

    def key(domain: str, *entries: Entry) -> str:
        found = of.find(domain, entries)
        assert found is not None
        return found.key

    assert key("d", ("path", "/a/1")) == key("d", ("path", "/a/2"))
    assert key("d", ("path", "/b/1")) != key("d", ("path", "/b/2"))
    assert key("d", ("path", "/a/1")) != key("d", ("path", "/b/1"))
    assert len(key("d", ("path", "/b/" + "x" * 5_000))) <= 1_024
    assert key("d", ("path", "/b/" + "x" * 5_000)) != key("d", ("path", "/b/" + "x" * 5_001))


def test_all_fields_of_a_limit_are_read() -> None:
    of = config("""
        domain: d
        descriptors:
          - key: k
            shadow_mode: true
            quota_mode: yes
            detailed_metric: true
            metadata: {team: a}
            rate_limit: {unit: Minute, requests_per_unit: 7, name: seven, replaces: [{name: six}, {name: five}]}
          - {key: free, rate_limit: {unlimited: true}}
          - {key: never, rate_limit: {unit: hour, requests_per_unit: 0}}
    """)
    found = of.find("d", [("k", "v")])
    assert found is not None
    said = found.limit
    assert (said.requests, said.name, said.replaces) == (7, "seven", ("six", "five"))
    assert (said.shadow, said.quota_mode, said.detailed_metric, said.metadata) == (True, True, True, {"team": "a"})
    assert said.quota is Quota(7, 60, "fixed_window")
    free, never = of.find("d", [("free", "")]), of.find("d", [("never", "")])
    assert free is not None
    assert (free.limit.unlimited, free.limit.quota) == (True, None)
    assert never is not None
    assert (never.limit.unlimited, never.limit.requests, never.limit.quota) == (False, 0, None)


@pytest.mark.parametrize(
    ("more", "quota"),
    [
        ("algorithm: sliding_window", Quota(10, 3_600, "sliding_window")),
        ("burst: 30", Quota(10, 3_600, "token_bucket", burst=30)),
        ("algorithm: gcra, burst: 3", Quota(10, 3_600, "gcra", burst=3)),
        ("min_interval: 100ms", Quota(10, 3_600, "fixed_window", min_interval=0.1)),
        ("count_denied: true", Quota(10, 3_600, "fixed_window", count_denied=True)),
    ],
)
def test_a_limit_may_say_more_than_the_original_knows(more: str, quota: Quota) -> None:
    of = config(f"domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: hour, requests_per_unit: 10, {more}}}}}]")
    found = of.find("d", [("k", "v")])
    assert found is not None
    assert found.limit.quota is quota


def test_metrics_are_named_after_the_file_unless_it_asks_for_values() -> None:
    of = config("""
        domain: d
        descriptors:
          - {key: plain, rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: some, value: "v*", rate_limit: {unit: day, requests_per_unit: 1}}
          - key: told
            value_to_metric: true
            descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]
          - key: all
            descriptors: [{key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}]
    """)

    def title(*entries: Entry) -> str:
        found = of.find("d", entries)
        assert found is not None
        return found.title

    assert title(("plain", "x")) == "d.plain"
    assert title(("some", "v1")) == "d.some_v*"
    assert title(("told", "x"), ("k", "y")) == "d.told_x.k"
    assert title(("all", "x"), ("k", "y")) == "d.all_x.k_y"


def test_anchors_and_merge_keys_are_followed() -> None:
    of = config("""
        domain: d
        descriptors:
          - key: a
            rate_limit: &limit {unit: day, requests_per_unit: 5}
          - {key: b, rate_limit: *limit}
          - {key: c, rate_limit: {<<: *limit, requests_per_unit: 6}}
          - {key: d, rate_limit: {<<: [*limit], name: d}}
    """)
    assert [limit("d", (key, "x"), of=of) for key in "abcd"] == [5, 5, 6, 5]


def test_aliases_cannot_unfold_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "MAX_DESCRIPTORS", 1_000)
    merging = "\n".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}" for n in range(1, 60))
    assert "unknown key" in faults(f"domain: d\nm0: &m0 {{key: x}}\n{merging}\n<<: *m59\n")[0]
    lists = "\n".join(
        f"d{n}: &d{n} [{{key: a, descriptors: *d{n - 1}}}, {{key: b, descriptors: *d{n - 1}}}]" for n in range(1, 60)
    )
    said = faults(f"domain: d\nd0: &d0 [{{key: x}}]\n{lists}\ndescriptors: *d20\n")
    assert any("more than 1000 descriptors" in fault for fault in said)
    said = faults(f"domain: d\nd0: &d0 [{{key: x}}]\n{lists}\ndescriptors: *d59\n")
    assert any("nested too deeply" in fault for fault in said)


def test_a_file_that_holds_itself_is_a_fault() -> None:
    assert "an alias of nothing that is complete" in faults("domain: d\ndescriptors: &a [{key: x, descriptors: *a}]")[0]


LOCATED = [
    ("descriptors: []", "0.yaml:1: domain: missing or empty (expected the domain that Envoy's filter names)"),
    ("domain: d\ndescriptors:\n  - {value: x}", "0.yaml:3: descriptors[0].key: missing or empty"),
    (
        "domain: d\ndescriptors:\n  - {key: a, value: b}\n  - {key: a, value: b}",
        "0.yaml:4: descriptors[1]: repeated: a_b also stands on line 3",
    ),
    ("domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: fortnight}}", "'fortnight': unknown unit (expected one"),
    ("domain: d\ndescriptors:\n  - {key: a, rate_limit: {requests_per_unit: 1}}", "rate_limit.unit: missing"),
    ("domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, unit: day}}]", "of something unlimited"),
    ("domain: d\ndescriptors: [{key: a, rate_limits: {}}]", "unknown key, did you mean rate_limit?"),
    ("domain: d\ndescriptors: [a]", "descriptors[0]: 'a': expected a mapping with key"),
    ("domain: d\ndescriptors: 3", "descriptors: 3: expected a list"),
    ("- domain: d", "0.yaml:1: a list: expected a mapping with domain"),
    ("", "0.yaml: nothing in it (expected a mapping with domain)"),
    ("domain: [", "not YAML"),
    ("domain: d\ndescriptors: [{key: a, share_threshold: true}]", "share_threshold: true: of a value without *"),
    ("domain: d\ndescriptors: [{key: a, shadow_mode: 7}]", "shadow_mode: 7: expected true or false"),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]",
        "requests_per_unit: -1: expected a whole number, 0 to 4294967295",
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: }]}}]",
        "replaces[0].name: missing or empty",
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, name: n, replaces: [{name: n}]}}]",
        "'n': its own name (expected the name of another limit)",
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: magic}}]",
        "unknown algorithm",
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: calendar}}]",
        "'calendar': of a hour",
    ),
    (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, min_interval: 5}}]",
        "min_interval: 5: expected a duration",
    ),
    (
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: &l {unit: day, requests_per_unit: 1, burst: 4,\n"
            "algorithm: fixed_window}}]"
        ),
        "fixed_window has no burst",
    ),
]


@pytest.mark.parametrize(("text", "fault"), LOCATED)
def test_faults_are_located(text: str, fault: str) -> None:
    said = faults(text)
    assert len(said) == 1
    assert fault in said[0]


def test_all_faults_of_all_files_are_reported_at_once() -> None:
    said = faults("domain: d\ndescriptors: [{key: '', oops: 1}]", "domain: d", "domain: e\ndescriptors: {}")
    assert len(said) == 4
    assert said[2].startswith("1.yaml:1: domain: 'd': repeated: also in 0.yaml")


def test_files_of_one_domain_are_merged_if_that_is_wanted() -> None:
    texts = [
        f"domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]" for key in "ab"
    ]
    of = config(*texts, options=Options(merge_domains=True))
    assert [limit("d", (key, "x"), of=of) for key in "ab"] == [1, 1]
    assert "repeated: a also stands" in faults(texts[0], texts[0], options=Options(merge_domains=True))[0]


def test_another_content_is_another_version() -> None:
    assert config("domain: d").version != config("domain: e").version
