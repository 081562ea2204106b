"""Makes a failing graph small: `python -m tests.fuzz.reduce 105 name` writes `corpus/name.txt`.

Nodes are taken out one at a time while the graph keeps failing; what they gave becomes a model input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.differential import Setting, check, random_setting
from tests.fuzz.maker import Maker
from tests.fuzz.steps import random_maker

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.text import parse_graph, print_graph

Array = np.ndarray[Any, Any]
CORPUS = Path(__file__).parent / "corpus"


def keep_nodes(graph: Graph, kept: Sequence[Node], outputs: Sequence[Value]) -> Graph:
    """The graph of these nodes alone; other values they read become inputs."""
    copy, mapping = Graph(graph.name), dict[Value, Value]()

    def copied(value: Value | None) -> Value | None:
        if value is not None and value not in mapping:
            mapping[value] = Value(value.name, value.dtype, value.shape, value.data)
        return None if value is None else mapping[value]

    made = {v for node in kept for v in node.results()}
    for node in kept:
        for value in node.operands():
            if value not in made and not value.is_constant and value not in mapping:
                clone = copied(value)
                assert clone is not None
                copy.add_input(clone)
        copy.append(
            Node(
                node.op_type,
                [copied(v) for v in node.inputs],
                [copied(v) for v in node.outputs],
                node.attributes,
                name=node.name,
                domain=node.domain,
                opset=node.opset,
            )
        )
    read = {v for node in kept for v in node.operands()}
    wanted = [v for v in dict.fromkeys((*outputs, *(v for n in kept for v in n.results()))) if v in made]
    copy.outputs = [mapping[v] for v in wanted if v in outputs or v not in read]
    return copy


def reduce_graph(
    graph: Graph, feed: Mapping[str, Array], fails: Callable[[Graph, Mapping[str, Array]], bool]
) -> tuple[Graph, dict[str, Array]]:
    """The smallest failing graph that taking out nodes and outputs reaches."""
    everything = {**run_graph(graph, feed, taps=[v.name for n in graph.nodes for v in n.results()]), **feed}
    nodes, outputs = list(graph.nodes), list(graph.outputs)

    def attempt(nodes: Sequence[Node], outputs: Sequence[Value]) -> bool:
        if not nodes:
            return False
        smaller = keep_nodes(graph, nodes, outputs)
        return bool(smaller.outputs) and fails(smaller, {v.name: everything[v.name] for v in smaller.inputs})

    if not attempt(nodes, outputs):
        return graph, dict(feed)
    changed = True
    while changed:
        changed = False
        for size in (8, 4, 2, 1):
            for start in range(len(nodes) - size, -1, -size):
                fewer = nodes[:start] + nodes[start + size :]
                if attempt(fewer, outputs):
                    nodes, changed = fewer, True
        for value in list(outputs):
            fewer_outputs = [v for v in outputs if v is not value]
            if attempt(nodes, fewer_outputs):
                outputs, changed = fewer_outputs, True
    smaller = keep_nodes(graph, nodes, outputs)
    return smaller, {v.name: everything[v.name] for v in smaller.inputs}


def settings_like(setting: Setting) -> list[Setting]:
    """The setting, and others that often show the same: chance depends on the number of nodes."""
    return [
        setting,
        replace(setting, partition="random-large", schedule="sequential"),
        *(replace(setting, seed=s) for s in range(4) if setting.partition != "layerwise"),
    ]


def reduce_seed(seed: int) -> tuple[Graph, dict[str, Array], bool, Setting] | None:
    """The smallest failing graph found from a seed's, and a setting under which it fails."""
    m = random_maker(seed)
    found: list[Setting] = []

    def fails(graph: Graph, feed: Mapping[str, Array]) -> bool:
        for setting in settings_like(random_setting(seed)):
            try:
                check(graph, feed, exact=m.exact, setting=setting)
            except Exception:  # whatever goes wrong is the finding
                found.append(setting)
                return True
        return False

    graph, feed = reduce_graph(m.graph, m.feed(), fails)
    if not found or not fails(graph, feed):
        return None
    return graph, feed, m.exact, found[-1]


def corpus_text(graph: Graph, exact: bool, setting: Setting) -> str:
    fields = " ".join(f"{k}={getattr(setting, k)}" for k in Setting.__dataclass_fields__)
    return f"# exact={exact} {fields}\n{print_graph(graph, weights=True)}"


def read_corpus(path: Path) -> tuple[Graph, bool, Setting]:
    """A corpus file: the graph, whether it is exact, the setting in which it failed."""
    first, text = path.read_text().split("\n", 1)
    fields = dict(field.split("=") for field in first.removeprefix("# ").split())
    setting = Setting(
        partition=fields["partition"],
        schedule=fields["schedule"],
        memory=fields["memory"],
        isa=None,
        threads=int(fields["threads"]),
        passes=fields["passes"] == "True",
        seed=int(fields["seed"]),
        barriers="strict" if fields.get("barriers") == "strict" else "stages",
    )
    return parse_graph(text), fields["exact"] == "True", setting


def sample_feed(graph: Graph, exact: bool) -> dict[str, Array]:
    """Data for a corpus file: its own are not kept."""
    m = Maker(7, exact=exact)
    return {v.name: m.data(v.shape, v.dtype) for v in graph.inputs}


def main() -> None:
    for argument in sys.argv[1:]:
        number, _, name = argument.partition(":")
        seed = int(number)
        found = reduce_seed(seed)
        if found is None:
            print(f"{seed} does not fail")
            continue
        graph, _, exact, setting = found
        print(f"--- {seed} {setting}\n{print_graph(graph)}", flush=True)
        if name:
            (CORPUS / f"{name}.txt").write_text(corpus_text(graph, exact, setting))


if __name__ == "__main__":
    main()
