"""Joint plans for machines that launch kernels one by one: blocks of all planners' plans, combined."""
