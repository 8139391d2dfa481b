"""What the agent should publish, from what it sees: pure functions, no I/O and no clock.

`snapshot` is the input; `plan.plan` turns it and the present carvings into device lists for the
kubelet, counts for the node's status, and reports for ShadowPods.
"""
