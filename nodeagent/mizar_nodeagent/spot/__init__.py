"""Lends the cards of sleeping owners: who may borrow which card, and how it comes back.

Pure: events, owners, loan, borrowers, device_list. The other modules look, apply and end.
"""
