"""What measuring costs, beside peers and limits: `make bench`."""
