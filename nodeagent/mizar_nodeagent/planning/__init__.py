"""Plans what the node agent publishes, from a snapshot of the node: pure functions without I/O and
without a clock.

`snapshot` has the input. `plan.plan` turns it and the present carvings into device lists for the
kubelet, device counts for the node's status, and reports for the ShadowPods' status.
"""
