"""Simulated GPU cards: the libraries that programs load, the machine behind them, its tools.

machine = simgpu.create(directory, cards=2)     # state, dev/, driver/lib64
machine.cards[0].used                           # bytes
simgpu.environment(directory)                   # for a program outside a container
"""

from simgpu.build import build
from simgpu.machine import Card, Machine, Process, create, environment

__all__ = ["Card", "Machine", "Process", "build", "create", "environment"]
