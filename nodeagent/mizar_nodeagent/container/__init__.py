"""Gives each share container its slot, its cards, the shim and its limits.

In a container's order: allocate.py answers the kubelet while the pod is admitted, prestart.py
before the container starts, nri_component.py when the runtime creates it; limits_update.py changes
its limits while it runs, and slot_gc.py removes what it, or an Allocate that an agent did not
finish, leaves behind.
"""
