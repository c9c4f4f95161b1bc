"""The Redis store: counters that every server of a fleet shares, in one Redis or Valkey.

`keys` names what is stored, `lua/` decides inside the server, `script` assembles that, `plan` turns operations into one
script call and its reply into outcomes. None of them does I/O.
"""
