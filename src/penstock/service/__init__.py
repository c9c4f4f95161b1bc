"""The service: a decision API that any language can ask, over transports of our own."""
