"""A private federation on lanes: Fashion-MNIST pictures at the clients, a small network between them."""
