"""HTTP/1.1: reading requests and writing responses, without waiting for either."""
