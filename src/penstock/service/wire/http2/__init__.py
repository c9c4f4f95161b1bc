"""HTTP/2 (RFC 9113) with its header compression (RFC 7541): what a server of calls needs of them, and nothing else.

frames    what frames look like, the protocol's errors, its settings
huffman   the code of RFC 7541, by the byte
fields    header blocks to fields and back
requests  fields to a request, and what makes one malformed
streams   open streams, and answers within the windows that the peer has opened
patience  how much trouble a peer may make
session   bytes in, calls up, bytes out; no socket, no clock
connection  a session on a socket, with its timers
"""
