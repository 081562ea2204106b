"""What a program is: graphs of nodes and values, and the loop nests that describe each operator's work."""
