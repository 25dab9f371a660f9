"""Trackers that `run.track` names: TensorBoard, MLflow, and Weights & Biases."""
