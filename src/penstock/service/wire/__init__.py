"""The transport: bytes to batches of calls, and answers to bytes. It does not depend on rate limits."""
