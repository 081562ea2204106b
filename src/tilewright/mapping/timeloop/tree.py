"""The components of one of Timeloop's architectures: memories from the outermost to the innermost, and MACs.

Versions 0.2 and 0.3 nest subtrees, each with its own components before those further in. Version 0.4 is a
list in which everything is inside what comes before it; parallel memories are taken one inside the other,
each holding what it keeps, as Timeloop does. The flat form before them lists the innermost memory first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tilewright.mapping.timeloop.document import TAG, Entry

FLAT_VERSION = 0.1
"""Stands for the flat form, which has no version."""

STORAGE = frozenset({
    "entries", "depth", "memory_depth", "data_storage_depth", "sizeKB", "width", "memory_width",
    "data_storage_width", "word_bits", "word_width", "datawidth", "block_size", "n_words", "cluster_size",
    "instances", "meshX", "meshY", "bandwidth", "read_bandwidth", "write_bandwidth", "multiple_buffering",
    "vector_access_energy", "technology",
})  # fmt: skip
COMPUTE = frozenset({"instances", "meshX", "meshY", "word_bits", "datawidth", "energy"})
# What other tools read, or what changes none of the counts.
_WITHOUT_EFFECT = frozenset({
    "technology", "type", "num_ports", "num_banks", "n_ports", "nports", "n_banks", "nbanks", "latency",
    "n_rd_ports", "n_wr_ports", "n_rdwr_ports", "network_word_bits", "network_bits", "voltage", "frequency",
    "global_cycle_seconds", "cycle_seconds", "action_latency_cycles", "cluster_area", "area",
    "network_read", "network_fill", "network_drain", "network_update", "network_operand", "network_result",
    "num_pipeline_stages", "pipelined", "multiplier_width", "adder_width", "exponent", "mantissa", "width",
    "update_fifo_depth", "fifo_depth", "metadata_datawidth", "metadata_block_size", "metadata_storage_depth",
    "metadata_storage_width", "metadata_word_bits", "power_gated_at", "has_power_gating",
    "concordant_compressed_tile_traversal", "tile_partition_supported", "compression_supported",
    "decompression_supported",
})  # fmt: skip
# What would change the counts, unless it has the value by which Timeloop means "not at all".
_REFUSED = {
    "shared_bandwidth": "reads and writes have a bandwidth each; give read_bandwidth and write_bandwidth",
    "allow_overbooking": "tiles that may exceed a memory are not modelled; leave it out",
    "min_utilization": "a least use of a memory is not modelled; leave it out",
    "network_fill_latency": "latencies of networks are not modelled; leave it out",
    "network_drain_latency": "latencies of networks are not modelled; leave it out",
    "per_dataspace_bandwidth_consumption_scale": "all tensors use bandwidth alike; leave it out",
    "addr_gen_energy": "energies of address generators are not modelled; leave it out",
    "sparse_optimizations": "sparse data is not modelled; leave it out for dense data",
    "reduction_supported": "every memory adds up partial sums; leave it out",
}
_NODE = (
    "name", "class", "subclass", "attributes", "local", "subtree", "required_actions", "constraints",
    "spatial", "nodes", "enabled", "area_scale", "energy_scale", "networks", "sparse_optimizations", TAG,
)  # fmt: skip
_RANGE = re.compile(r"([^\[\]]+)\[\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*\]")
_COMPUTE_WORDS = ("mac", "compute")
_MEMORY_WORDS = ("dram", "sram", "regfile", "storage", "buffer", "register", "memory")
_OTHER_WORDS = (
    "noc", "network", "legacy", "reductiontree", "multicast", "router", "wire", "counter", "adder",
    "multiplier", "nothing",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Component:
    """A memory or a MAC: its class, its attributes, how many there are in all, what its node says of it."""

    name: str
    part: Entry
    class_name: str
    attributes: dict[str, Entry]
    num_instances: int
    version: float
    constraints: Entry | None = None
    is_parallel: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """Memories from the outermost to the innermost, the MACs, and a node's constraints on loops, if any."""

    memories: tuple[Component, ...]
    compute: Component
    binding: Entry | None


def read_architecture(part: Entry) -> Architecture:
    """The components of an `architecture` section (a tree) or an `arch` section (flat lists)."""
    if "storage" in part.entries():
        return _flat(part)
    keys = part.known_keys(("version", "subtree", "nodes", "name", "attributes", TAG), "an architecture")
    walk = _Walk(_version(keys["version"]) if "version" in keys else 0.3)
    if "nodes" in keys:
        walk.nodes(keys["nodes"].items(), _inherited(keys.get("attributes"), {}), is_parallel=False)
    elif "subtree" in keys:
        walk.subtree(keys["subtree"], 1)
    else:
        raise part.error("there is no subtree (version 0.3) and no nodes (version 0.4)")
    return walk.found(part)


def _version(part: Entry) -> float:
    """A number, or text such as '0.4'."""
    text = str(part.value)
    if not re.fullmatch(r"\d\.\d{1,3}", text):
        raise part.error(f"expected a version such as 0.3, found {part.value!r}")
    return float(text)


def _flat(part: Entry) -> Architecture:
    keys = part.known_keys(("arithmetic", "storage", "version", "name"), "an architecture of flat lists")
    walk = _Walk(FLAT_VERSION)
    known = ("name", *STORAGE, *COMPUTE, *_WITHOUT_EFFECT, *_REFUSED)
    for item in reversed(list(keys["storage"].items())):
        walk.add(_flat_component(item, item.known_keys(known, "a memory"), "SRAM"))
    if "arithmetic" not in keys:
        raise part.error("arithmetic is missing")
    arithmetic = keys["arithmetic"]
    walk.add(_flat_component(arithmetic, arithmetic.known_keys(known, "arithmetic"), "intmac"))
    return walk.found(part)


def _flat_component(part: Entry, keys: dict[str, Entry], class_name: str) -> Component:
    keys = _counting(keys)
    count = _instances(part, keys, None)
    name = keys["name"].text() if "name" in keys else "MAC"
    return Component(name, part, class_name, keys, count, FLAT_VERSION)


class _Walk:
    """Collects components while an architecture is read."""

    def __init__(self, version: float) -> None:
        self.version = version
        self.memories: list[Component] = []
        self.compute: Component | None = None
        self.num_instances = 1  # in version 0.4: of whatever comes next
        self.binding: Entry | None = None

    def found(self, part: Entry) -> Architecture:
        """All components, once the whole architecture is read."""
        if not self.memories:
            raise part.error("there is no memory")
        if self.compute is None:
            raise part.error("there is no compute unit (a class such as intmac)")
        names = [memory.name for memory in self.memories]
        for number, memory in enumerate(self.memories):
            if memory.name in names[:number]:
                raise memory.part.error(f"the name {memory.name!r} is given twice")
        return Architecture(tuple(self.memories), self.compute, self.binding)

    def subtree(self, part: Entry, num_instances: int) -> None:
        """Versions 0.2 and 0.3, in which components have none of the attributes around them."""
        branches = list(part.items())
        if len(branches) > 1:
            raise branches[1].error("a second branch; a machine has one chain of memories")
        for branch in branches:
            keys = branch.known_keys(_NODE, "a subtree")
            count = num_instances * _name_of(branch, keys)[1]
            for local in keys["local"].items() if "local" in keys else ():
                local_keys = local.known_keys(_NODE, "a component")
                self.component(local, local_keys, count * _name_of(local, local_keys)[1], {})
            if "subtree" in keys:
                self.subtree(keys["subtree"], count)

    def nodes(self, nodes: Iterable[Entry], inherited: dict[str, Entry], *, is_parallel: bool) -> None:
        """Version 0.4."""
        for node in nodes:
            keys = node.known_keys(_NODE, "a node")
            tag = keys[TAG].text() if TAG in keys else "Component" if "class" in keys else "Container"
            if tag in ("Hierarchical", "Parallel"):
                if "nodes" not in keys:
                    raise node.error(f"!{tag} without nodes")
                self.nodes(keys["nodes"].items(), inherited, is_parallel=is_parallel or tag == "Parallel")
            elif tag == "Pipelined":
                raise node.error("pipelined parts are not modelled; a machine has one chain of memories")
            elif tag in ("Component", "Container"):
                count = _name_of(node, keys)[1] * _mesh(keys.get("spatial"))
                if is_parallel and count > 1:
                    raise node.error("a mesh inside !Parallel is not modelled; put it around all of it")
                self.num_instances *= count
                if tag == "Container":
                    self.bound(keys)
                    inherited = _inherited(keys.get("attributes"), inherited)
                else:
                    self.component(node, keys, self.num_instances, inherited, is_parallel=is_parallel)

    def bound(self, keys: dict[str, Entry]) -> None:
        """Note constraints on loops."""
        if "constraints" in keys and keys["constraints"].value:
            entries = keys["constraints"].entries()
            self.binding = next((entries[k] for k in ("temporal", "spatial") if k in entries), self.binding)

    def component(
        self,
        part: Entry,
        keys: dict[str, Entry],
        num_instances: int,
        inherited: dict[str, Entry],
        *,
        is_parallel: bool = False,
    ) -> None:
        """A memory or a MAC; networks and the like have no place in a machine."""
        if "enabled" in keys and not keys["enabled"].flag():
            return
        if "class" not in keys:
            raise part.error("class is missing")
        self.bound(keys)
        class_name = " ".join(keys[key].text() for key in ("class", "subclass") if key in keys)
        attributes = keys["attributes"].entries() if "attributes" in keys else {}
        known = _known_attributes(part, class_name, attributes)
        if known is None:
            return
        if "attributes" in keys:
            allowed = (*known, *_WITHOUT_EFFECT, *_REFUSED)
            keys["attributes"].known_keys(allowed, f"a component of class {class_name}")
        own = _counting(attributes | {k: keys[k] for k in ("sparse_optimizations",) if k in keys})
        count = _instances(part, own, num_instances)
        if not any(key in own for key in _WORD_SIZES):
            own = inherited | own
        name, _ = _name_of(part, keys)
        constraints = keys.get("constraints")
        self.add(Component(name, part, class_name, own, count, self.version, constraints, is_parallel))

    def add(self, component: Component) -> None:
        """One more component, inside all before it."""
        if self.compute is not None:
            raise component.part.error(f"{component.name} is inside the compute unit {self.compute.name}")
        if is_compute(component.class_name):
            self.compute = component
        else:
            self.memories.append(component)


def _counting(attributes: dict[str, Entry]) -> dict[str, Entry]:
    """Attributes that have a value, without those that ask for nothing of what we do not model."""
    attributes_by_name: dict[str, Entry] = {}
    for key, part in attributes.items():
        if key in _REFUSED:
            if not _asks_for_nothing(key, part.value):
                raise part.error(_REFUSED[key])
        elif part.value is not None:
            attributes_by_name[key] = part
    return attributes_by_name


def _asks_for_nothing(key: str, value: object) -> bool:
    if key == "reduction_supported":
        return value in (None, True, "yes", "true", "True")
    return not value or value in ("false", "False") or (isinstance(value, int | float) and value <= 0)


def _instances(part: Entry, attributes: dict[str, Entry], expected: int | None) -> int:
    """How many there are in all: as given, or by the mesh, or as the names around them say."""
    mesh = {axis: attributes[axis].count() for axis in ("meshX", "meshY") if axis in attributes}
    if "instances" in attributes:
        count = attributes["instances"].count()
    elif expected is not None:
        count = expected
    elif len(mesh) == 2:
        count = mesh["meshX"] * mesh["meshY"]
    else:
        raise part.error("instances is missing")
    for axis, length in mesh.items():
        if count % length:
            raise attributes[axis].error(f"{count} instances make no mesh with {length} along {axis}")
    if len(mesh) == 2 and mesh["meshX"] * mesh["meshY"] != count:
        raise part.error(f"a mesh of {mesh['meshX']} by {mesh['meshY']} has not {count} instances")
    return count


def _known_attributes(part: Entry, class_name: str, own: Collection[str]) -> Collection[str] | None:
    """Attributes that count for a component of this class; None if the component does not."""
    if is_compute(class_name):
        return COMPUTE
    sizes = ("entries", "depth", "memory_depth", "data_storage_depth", "sizeKB")
    lower = class_name.lower()
    if any(word in lower for word in _MEMORY_WORDS):
        return STORAGE
    if any(word in lower for word in _OTHER_WORDS):
        return None
    if any(size in own for size in sizes):
        return STORAGE
    raise part.error(
        f"the class {class_name!r} is neither a memory (SRAM, regfile, or anything with a depth) "
        "nor a compute unit (intmac); leave out what is neither"
    )


def is_compute(class_name: str) -> bool:
    """Whether a component of this class multiplies."""
    return any(word in class_name.lower() for word in _COMPUTE_WORDS)


def _name_of(part: Entry, keys: dict[str, Entry]) -> tuple[str, int]:
    """The name, and how many `name[0..15]` stands for."""
    if "name" not in keys:
        raise part.error("name is missing")
    text = keys["name"].text()
    match = _RANGE.fullmatch(text)
    if match is None:
        return text, 1
    first, last = int(match[2]), int(match[3])
    if first > last:
        raise keys["name"].error(f"{text!r} counts down")
    return match[1].strip(), last - first + 1


def _mesh(spatial: Entry | None) -> int:
    count = 1
    if spatial is not None:
        for part in spatial.known_keys(("meshX", "meshY"), "spatial").values():
            count *= part.count()
    return count


_WORD_SIZES = ("word_bits", "word_width", "datawidth")


def _inherited(own: Entry | None, outer: dict[str, Entry]) -> dict[str, Entry]:
    """Attributes that components further in have unless they say otherwise: word sizes."""
    keys = own.entries() if own is not None and own.value is not None else {}
    sizes = {k: v for k, v in keys.items() if k in _WORD_SIZES and v.value is not None}
    return sizes or outer
