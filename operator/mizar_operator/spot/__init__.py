"""Spot pods: gather, plan and apply for the whole cluster at once, under a separate key, since a
spot pod may borrow any pool's card."""
