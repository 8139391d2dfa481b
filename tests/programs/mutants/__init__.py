"""Mutation testing: faults planted one by one, to see whether the fast tests notice."""
