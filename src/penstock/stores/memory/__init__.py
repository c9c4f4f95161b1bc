"""The store in this process: counters in stripes, each behind its own lock."""
