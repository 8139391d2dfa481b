"""`make demo`: what Mizar does, shown on a real local Kubernetes with simulated cards."""
