"""One module a picture. Each has a `PICTURE`; the catalogue finds it by itself."""
