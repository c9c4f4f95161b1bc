"""HTTP/2 (RFC 9113) with its header compression (RFC 7541), as far as a server of calls needs them."""
