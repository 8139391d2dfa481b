"""Lends the cards of idle owners: decides which pod may borrow which card, and takes cards back.

The modules events, owners, loan, borrowers and device_list are pure; the others do I/O.
"""
