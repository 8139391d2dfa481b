"""What holds for all tests."""

from hypothesis import settings

from support.effort import effort

settings.register_profile("mizar", effort())
settings.load_profile("mizar")
