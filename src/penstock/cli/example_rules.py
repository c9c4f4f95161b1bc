"""The rules that `penstock serve` writes where there are none: small, true, and something to change."""

EXAMPLE = """\
# Rules of Penstock. `penstock serve` follows this file: save it, and a second later it is in force.
# What else can stand here: docs/rules.md. What is wrong with it: penstock rules check penstock.yaml

rules:
  # Everybody, by API key, else by address.
  - id: everybody
    key: api_key | ip
    quota: 100/minute

  # Searching is dear. Both rules apply to it: a request is charged to all of them or to none.
  - id: search
    match:
      path: {prefix: /search}
    key: api_key | ip
    quota: 5/10 seconds

  # Logins are guessed at: five tries, then a quarter of an hour of nothing.
  - id: login
    match:
      path: /login
      method: POST
    key: ip
    quota: 5/15 minutes rolling_window penalty 15m
"""
