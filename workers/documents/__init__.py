"""What the model reads while it is measured."""
