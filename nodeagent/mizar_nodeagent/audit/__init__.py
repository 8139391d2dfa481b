"""Do the containers' own accounts agree with what NVML and /proc tell of their processes?"""
