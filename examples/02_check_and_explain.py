"""What the compiler will do with each operator, what it did, and why.

Prints:

    every operator runs as generated code: True
    65 nodes in 39 subgraphs
    Relu 'features.1' runs with Conv 'features.0'
    features.0 -> features.1: fused (epilogue: applied to each element as the producer finishes it)
    features.1 -> features.2: cut (reduction: the reader reduces or normalises and starts its own kernel)
    arena within 5 % of the least possible: True
"""

import tilewright as tw

model = tw.load(tw.zoo.build("squeezenet1_1", image=64))

# Before any work: one verdict per kind of operator, with a reason.
report = tw.check(model, "cpu")
print("every operator runs as generated code:", report.ok and not report.on_host)

compiled = tw.compile(model)
print(len(compiled.program.graph.nodes), "nodes in", len(compiled.partition.subgraphs), "subgraphs")

# One node: which kernel runs it, with whom, and why its edges were fused or cut.
story = compiled.explain("features.1")
(kernel,) = story.kernels
print(f"Relu 'features.1' runs with Conv {kernel.nodes[0]!r}")
for edge in story.edges:
    print(edge)

# Memory is planned before the first run, beside a lower bound on any plan.
memory = compiled.memory
print("arena within 5 % of the least possible:", memory.peak_bytes <= 1.05 * memory.lower_bound_bytes)

# Everything as one page that needs no network, and as JSON.
compiled.report().save("report.html")
compiled.report().save("report.json")
