"""Networks: encoders that turn an input into an embedding, and the refiner that thinks about it."""
