"""Watching a running Penstock: metrics, accuracy, logs and traces. Nothing here takes part in a decision."""
