"""One operator on a described machine: which loop runs at which level of memory, and in what order."""
