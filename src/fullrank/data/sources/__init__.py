"""Where data come from: data sets by name, files, tensors and functions."""
