"""Loading models safely and keeping them warm."""
