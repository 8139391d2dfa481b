"""Gives each share container its slot, its cards, the shim and its limits.

In the order of a container's life: allocate.py answers the kubelet while the pod is admitted,
prestart.py before the container starts, and nri_component.py answers the runtime when it creates
the container; missed_containers.py kills a container that the runtime created without asking.
limits_update.py changes the limits of a container that runs, usage_trim.py bounds its usage file,
and slot_gc.py removes slots that no container will use again, including that of an Allocate which
an agent did not finish. access_choice.py chooses among the ways to give containers their cards.
"""
