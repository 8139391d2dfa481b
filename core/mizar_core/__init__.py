"""Names, models, limits and plans of Mizar: pure, without I/O, clock or randomness."""
