"""What is more than noise: the only place with levels, smallest sizes, tests and errors of differences."""
