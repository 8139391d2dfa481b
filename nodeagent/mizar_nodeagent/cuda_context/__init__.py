"""What a CUDA context costs on each model of card: measured once, kept, told to containers."""
