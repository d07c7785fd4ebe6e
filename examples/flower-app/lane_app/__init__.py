"""A private federation on lanes: clients hold Fashion-MNIST images and train a small neural network."""
