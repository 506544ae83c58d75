"""Tables, figures and one HTML page, made from the files of finished runs alone: no model, no data set."""
