"""Measures the memory that a CUDA context takes on each model of card, and keeps the results."""
