"""Running a model on a text: loading it, cutting the text into windows, and what is measured on the way."""
