"""Checks the containers' own accounts of memory against NVML's and /proc's lists of processes.

auditor.py does the rounds, and compare.py is the comparison. What follows from several rounds:
unaccounted_memory.py lowers a container's limit by the memory that its account leaves out, and
processes_without_shim.py reports or kills (kill.py) the processes that no limits bind.
isolation_condition.py tells the pods of these.
"""
