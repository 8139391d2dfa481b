"""Lends the cards of idle owners: decides which pod may borrow which card, and takes cards back.

detectors/ report what owners do (owner_events), loan.py decides from that whether a card may be
lent, lender.py applies it to all cards of the node, and reclaim.py takes cards back from their
borrowers. owner_events, owners, loan, borrowers, owner_conditions and device_list are pure; the
other modules may do I/O.
"""
