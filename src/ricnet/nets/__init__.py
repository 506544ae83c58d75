"""Networks: encoders from inputs to embeddings, and the recurrent refiner that reads them."""
