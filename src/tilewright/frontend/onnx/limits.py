"""How much a model file may ask of an import: every limit, in one place. Error messages name them."""

from __future__ import annotations

# Protocol buffers cannot describe more; larger models keep their weights in files of their own.
MAX_MODEL_BYTES = 2**31 - 1

# Bytes of a file besides the data of its tensors, wherever those stand. Parsed, such bytes can take seventy
# times the room (an empty message is 2 bytes in the file and about 140 in memory); weights take as much as
# they are.
MAX_STRUCTURE_BYTES = 32 << 20

# Messages and strings of a file. Each takes up to 1 KB while it is imported, so that the structure of a file
# takes 3 GiB at the most, weights what they are in the file, and constants computed 256 MiB.
MAX_PARTS = 2_000_000

# Fields of a file that are looked at one by one before it is parsed: more than any model has, and seconds.
MAX_FIELDS = 2_000_000

# Nodes of a file, of what its local functions expand to, and of the graph that it becomes.
MAX_NODES = 1_000_000

# Deeper than any exporter nests control flow; also bounds our own recursion.
MAX_NESTING = 24

# No tensor of a model that runs on one machine is larger; dims beyond this are mistakes or attacks.
MAX_VALUE_BYTES = 2**36

# More axes than any exporter writes, and as many as numpy has.
MAX_RANK = 64

# Elements of a constant that is computed at import: a file of 100 bytes may ask for a tensor of gigabytes.
MAX_FOLDED_ELEMENTS = 2**16

# All constants that are computed at import together. Weights that are read are not computed.
MAX_FOLDED_BYTES = 256 << 20

# Nodes that one loop may become: compiling them takes a few seconds.
MAX_UNROLLED_NODES = 1024

# Nodes that all loops of a model may become, inner loops counted with each around them; what was tried and
# given up counts too. Later loops stay whole.
MAX_UNROLLED_NODES_IN_ALL = 16 * MAX_UNROLLED_NODES

# Steps of a loop that only its condition ends.
MAX_UNCOUNTED_STEPS = 128

# Shapes, axes, pads, repeats, scales: whatever decides a shape is smaller than this.
MAX_SHAPE_ELEMENTS = 4096

# Processor time of an import: so long, and more for a large model, which takes 0.3 ms a node and 1 ns a byte.
MAX_IMPORT_S = 30.0
IMPORT_S_PER_NODE = 2e-3
IMPORT_S_PER_BYTE = 1e-7

# One call of onnx's C++: it takes microseconds, seconds for the largest models.
MAX_NATIVE_CALL_S = 10.0
MAX_NATIVE_BYTES = 4 << 30
NATIVE_BYTES_PER_BYTE = 16
