"""What training and finished runs show: hard examples, gradient rescaling, ensembles."""
