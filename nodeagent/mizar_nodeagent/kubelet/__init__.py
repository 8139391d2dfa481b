"""What the agent asks of the kubelet and reads of its files."""
