"""HTTP/1.1 (RFC 9112): requests and responses, with pipelining."""
