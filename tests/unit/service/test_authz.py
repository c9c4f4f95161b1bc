"""What proxies ask over HTTP: which request they mean, and what they are answered."""

import pytest

from penstock.errors import InvalidOption
from penstock.service.api import AuthzOptions
from penstock.service.api.authz import plain
from penstock.service.wire.calls import Header, Peer
from tests.unit.service.desk import Answer, ByHand, Desk

RULES = """
rules:
  - {id: orders, match: {path: {prefix: /orders}, method: POST}, key: ip, quota: 1/minute name orders}
  - {id: keyed, match: {path: /keyed}, key: api_key, quota: 1/minute}
  - {id: hosted, match: {path: /hosted, host: shop.example}, key: ip, quota: 1/minute}
  - {id: tenants, match: {path: /tenants}, key: tenant, quota: 1/minute}
  - {id: banned, match: {path: /banned}, action: deny, response: {message: Go away.}}
  - {id: hidden, match: {path: /hidden}, key: ip, quota: 1/minute, response: {headers: hidden}}
"""
ENVOY, NGINX, TRAEFIK = b"/v1/authz", b"/v1/authz-original", b"/v1/authz-forwarded"


def ask(desk: Desk, path: bytes, *headers: Header, method: bytes = b"GET", peer: str = "10.0.0.1") -> Answer:
    (answer,) = desk.ask(ByHand(method, path, b"", headers, Peer(peer)))
    return answer


@pytest.mark.parametrize("shared", [False, True])
def test_envoy_describes_the_request_by_method_and_the_rest_of_the_path(shared: bool) -> None:
    desk = Desk(RULES, shared=shared)
    answer = ask(desk, ENVOY + b"/orders/1?page=2", method=b"POST")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers == {b"ratelimit-policy": b'"orders";q=1;w=60', b"ratelimit": b'"orders";r=0;t=100'}
    refused = ask(desk, ENVOY + b"/orders/2", method=b"POST")
    assert refused.status == 429
    assert refused.headers[b"content-type"] == b"application/problem+json"
    assert (refused.headers[b"retry-after"], refused.headers[b"cache-control"]) == (b"100", b"no-store")
    assert refused.json["violated-policies"] == ["orders"]
    assert ask(desk, ENVOY + b"/orders/1", method=b"GET").headers == {}
    assert ask(desk, ENVOY + b"/").status == 200
    assert ("/v1/authz", [429]) in desk.observer.answers


def test_nginx_describes_the_request_by_headers_and_is_refused_with_403() -> None:
    desk = Desk(RULES)
    asked = ((b"x-original-uri", b"/orders/1?page=2"), (b"x-original-method", b"POST"))
    assert ask(desk, NGINX, *asked).status == 200
    refused = ask(desk, NGINX, *asked)
    assert (refused.status, refused.headers[b"x-penstock-status"]) == (403, b"429")
    assert refused.headers[b"retry-after"] == b"100"
    blocked = ask(desk, NGINX, (b"x-original-uri", b"/banned"))
    assert (blocked.status, blocked.headers[b"x-penstock-status"], blocked.json["detail"]) == (403, b"403", "Go away.")


def test_traefik_describes_the_request_by_other_headers() -> None:
    desk = Desk(RULES)
    asked = ((b"x-forwarded-uri", b"/orders/1?page=2"), (b"x-forwarded-method", b"POST"))
    assert [ask(desk, TRAEFIK, *asked).status for _ in range(2)] == [200, 429]


def test_headers_of_other_proxies_are_ignored() -> None:
    """A client may send them, and the proxy does not overwrite them."""
    desk = Desk(RULES)
    lies = ((b"x-original-uri", b"/free"), (b"x-original-method", b"GET"))
    truth = ((b"x-forwarded-uri", b"/orders/1"), (b"x-forwarded-method", b"POST"))
    assert [ask(desk, TRAEFIK, *lies, *truth).status for _ in range(2)] == [200, 429]
    assert ask(desk, ENVOY + b"/orders/1", *lies, method=b"POST").status == 429
    lies = ((b"x-forwarded-uri", b"/free"), (b"x-forwarded-method", b"GET"))
    truth = ((b"x-original-uri", b"/orders/1"), (b"x-original-method", b"POST"))
    assert ask(desk, NGINX, *lies, *truth).status == 403


def test_request_without_a_path_is_an_error() -> None:
    answer = ask(Desk(RULES), NGINX)
    assert (answer.status, answer.json["code"]) == (400, "missing_header")
    assert answer.json["detail"] == "x-original-uri: missing (expected the path that the client asked for)"


def test_client_address_is_the_one_that_the_proxy_reports() -> None:
    desk = Desk(RULES)

    def status(*hops: bytes, options: AuthzOptions | None = None) -> int:
        headers = [(b"x-forwarded-for", hop) for hop in hops]
        return ask(desk, ENVOY + b"/orders/1", *headers, method=b"POST").status

    assert status(b"192.0.2.1") == 200
    assert status(b"192.0.2.2") == 200
    assert status(b"198.51.100.9, 192.0.2.1") == 429  # what stands further left, anybody may have written
    assert status(b"198.51.100.9", b"192.0.2.2") == 429
    assert status() == 200  # the proxy itself
    assert status(b"unknown") == 429


def test_more_proxies_are_trusted_if_the_options_say_so() -> None:
    desk = Desk(RULES, authz=AuthzOptions(trusted_proxies=2))
    one = (b"x-forwarded-for", b"192.0.2.1, 10.0.0.9")
    assert [ask(desk, ENVOY + b"/orders/1", one, method=b"POST").status for _ in range(2)] == [200, 429]
    two = (b"x-forwarded-for", b"192.0.2.2, 10.0.0.9")
    assert ask(desk, ENVOY + b"/orders/1", two, method=b"POST").status == 200


def test_keys_hosts_and_other_entries_come_from_headers() -> None:
    desk = Desk(RULES, authz=AuthzOptions(api_key_header="X-Key", entries={"tenant": "X-Tenant"}))
    assert [ask(desk, ENVOY + b"/keyed", (b"x-key", b"a")).status for _ in range(2)] == [200, 429]
    assert ask(desk, ENVOY + b"/keyed", (b"x-key", b"b"), (b"x-api-key", b"a")).status == 200
    assert [ask(desk, ENVOY + b"/tenants", (b"x-tenant", b"t")).status for _ in range(2)] == [200, 429]
    assert ask(desk, ENVOY + b"/tenants", (b"x-tenant", b"u")).status == 200
    assert [ask(desk, ENVOY + b"/hosted", (b"host", b"shop.example")).status for _ in range(2)] == [200, 429]
    assert ask(desk, ENVOY + b"/hosted", (b"host", b"other.example")).status == 200


def test_hidden_rules_show_no_policy() -> None:
    desk = Desk(RULES)
    assert ask(desk, ENVOY + b"/hidden").headers == {}
    assert b"ratelimit" not in ask(desk, ENVOY + b"/hidden").headers


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/orders", "/orders"),
        (b"/orders/", "/orders/"),
        (b"/%6Frders", "/orders"),
        (b"/caf%C3%A9", "/caf\u00e9"),
        (b"//orders", "/orders"),
        (b"/./orders", "/orders"),
        (b"/x/../orders", "/orders"),
        (b"/x/%2e%2e/orders", "/orders"),
        (b"/../../orders", "/orders"),
        (b"/orders/.", "/orders/"),
        (b"/orders/x/..", "/orders/"),
        (b"/.hidden", "/.hidden"),
        (b"/a//b/.//c", "/a/b/c"),
        (b"/..", "/"),
        (b"", "/"),
        (b"*", "/*"),
        (b"/caf\xc3\xa9", "/caf\u00e9"),
        (b"/caf\xc3%A9", "/caf\u00e9"),
        (b"/\xff", "/\ufffd"),
        (b"/%FF", "/\ufffd"),
    ],
)
def test_path_is_matched_in_one_canonical_form(raw: bytes, path: str) -> None:
    assert plain(raw) == path


@pytest.mark.parametrize("uri", [b"http://shop.example/orders/1", b"https://u@h:1/orders/1?x", b"/orders/1#top"])
def test_a_target_with_scheme_and_host_is_its_path(uri: bytes) -> None:
    desk = Desk(RULES)
    asked = ((b"x-original-uri", uri), (b"x-original-method", b"POST"))
    assert [ask(desk, NGINX, *asked).status for _ in range(2)] == [200, 403]


def test_internal_error_is_500_and_other_calls_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(RULES)

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(desk.api._authz._proxies, "client", broken)
    asked = ByHand(b"GET", ENVOY + b"/x"), ByHand(b"POST", b"/v1/peek", b'{"key": "k", "quota": "1/s"}')
    assert [answer.status for answer in desk.ask(*asked)] == [500, 200]


def test_options_that_name_no_header_are_errors() -> None:
    with pytest.raises(InvalidOption, match=r"^authz header 'a b': expected the name of a header$"):
        Desk(RULES, authz=AuthzOptions(entries={"tenant": "a b"}))
