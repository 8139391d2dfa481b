"""What to do, from what is seen: pure functions, no I/O and no clock.

`view` is the snapshot; `plan.plan` turns it and what was remembered into device lists for the
kubelet, figures for the node's status, and reports for ShadowPods.
"""
