"""Models for use outside fullrank."""
