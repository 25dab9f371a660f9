"""Preparation of batches: normalisation and augmentation."""
