"""Lets tests import the generators in hack/, which are no part of the distribution."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
