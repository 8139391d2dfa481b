"""Mutation testing: plants faults one by one, to see whether the fast tests notice them."""
