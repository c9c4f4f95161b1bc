"""Envoy's rate limit service: its protocol, and the configuration of envoyproxy/ratelimit. See `parts`."""
