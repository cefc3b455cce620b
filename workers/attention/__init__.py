"""What the attention of a model was seen to do: kernels, content logits, masks, biases."""
