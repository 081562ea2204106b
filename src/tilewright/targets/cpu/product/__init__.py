"""Products: templates of single nests, and the choice between them."""
