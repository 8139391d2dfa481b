"""What the agent asks the kubelet, and reads of its files."""
