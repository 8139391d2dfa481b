"""Overrides: settings of the node agent that are different on some nodes."""
