"""The decision service: limits for clients in any language, over HTTP/1.1, HTTP/2 and gRPC."""
