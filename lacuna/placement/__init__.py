"""From a curve and chunks to an order, what it gains, and whether to reorder at all."""
