"""Limits for web applications: one step in every framework."""
