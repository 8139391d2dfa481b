"""Spot pods: gather, plan and apply for the whole cluster at once, under a key of its own, since a
spot pod may borrow any pool's card."""
