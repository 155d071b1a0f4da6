"""What is run: typed run specifications, data, training, evaluation, result tables."""
