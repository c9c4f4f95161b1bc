"""Transports: bytes come in, batches of calls go up, answers go back. Nothing here knows of rate limits."""
