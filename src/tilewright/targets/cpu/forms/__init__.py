"""Forms of subgraphs: the cut of each into kernels, and in which blocks these compute it."""

from tilewright.targets.cpu.forms.choose import Cuts, Group, choose_forms, find_forms

__all__ = ["Cuts", "Group", "choose_forms", "find_forms"]
