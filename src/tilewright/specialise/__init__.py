"""Models whose shapes are open: a static model for each set of shapes, made when it is needed and kept."""
