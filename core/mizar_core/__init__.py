"""Mizar's names, API models, limits and planner: pure, without I/O, clock or randomness."""
