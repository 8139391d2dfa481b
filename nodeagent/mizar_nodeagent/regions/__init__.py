"""Reads and writes the limits file and the usage file that each container shares with the agent.
Their layout is defined in shim/include/mizar_regions.h.

A container keeps the shim that its slot was created with for as long as the slot lives, and thereby
the version of both files. So after an upgrade of the agent, running containers may have files of
the previous version. shim/README.md ("The version of the two files") says what may change within a
version and what an agent does with files of another version; layout.SERVED lists the versions that
this agent reads and writes.
"""
