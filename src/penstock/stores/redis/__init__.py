"""The Redis store: counters that every server of a fleet shares, in one Redis or Valkey.

`keys` makes the names of counters, `lua/` decides inside the server, `script` assembles that, `codec` turns operations
into one script call and its reply into outcomes. None of them does I/O.
"""
