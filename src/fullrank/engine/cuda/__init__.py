"""The engine that trains clients on GPUs, by local steps that are captured as CUDA graphs and replayed."""
