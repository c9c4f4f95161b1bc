"""Limits for web applications: one step in every framework."""

from penstock.middleware.gate import failed_logins, unless_server_error

__all__ = ["failed_logins", "unless_server_error"]
