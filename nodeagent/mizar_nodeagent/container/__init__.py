"""Gives each share container its slot, its cards, the shim and its limits."""
