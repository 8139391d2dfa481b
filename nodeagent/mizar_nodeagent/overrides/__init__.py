"""Settings that are different on some nodes."""
