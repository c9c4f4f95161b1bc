"""The transport: bytes to batches of calls, and answers to bytes. It knows nothing of rate limits."""
