"""The two files that a container shares with the agent, its limits and its usage, as mapped by the
shim (shim/include/mizar_regions.h).

A container keeps the shim, and so the version of both files, that its slot was made with, for as
long as the slot lives: containers that run while the agent is upgraded have an older one. What may
change under the same version, and what an agent does with files of another one, is in
shim/README.md ("The version of the two files"); layout.SERVED lists the versions that this agent
reads and writes.
"""
