"""A reader of plans for whoever generates code from them: it checks that a plan can be run as it says.

tilewright simulate model.onnx -t stcp920 --json > plan.json
python examples/read_plan.py plan.json

It needs Python's standard library only. What a plan holds says `tilewright schema simulate`.
"""

import itertools
import json
import sys

ROUNDING_S = 1e-12


def problems(plan):
    """What is wrong with a plan, in words."""
    buffers, steps, inputs = plan["buffers"], plan["steps"], {value["name"] for value in plan["inputs"]}
    capacities = {level["name"]: level["placed_capacity_bytes"] for level in plan["levels"]}
    names = [f"buffer {b['number']} ({b['value']})" for b in buffers]
    ends = [b["offset_bytes"] + b["size_bytes"] for b in buffers]
    for b, name, end in zip(buffers, names, ends, strict=True):
        if capacities[b["level"]] is not None and end > capacities[b["level"]]:
            yield f"{name} ends behind the {capacities[b['level']]} bytes of {b['level']}"
    for old, new in itertools.combinations(sorted(buffers, key=lambda b: b["first_step"]), 2):
        is_apart = old["offset_bytes"] >= ends[new["number"]] or new["offset_bytes"] >= ends[old["number"]]
        if is_apart or old["level"] != new["level"]:
            continue
        in_place = new["in_place_of"] == old["number"]  # its step may read the one while it makes the other
        is_late = new["start_s"] >= old["end_s"] - ROUNDING_S or in_place
        if new["first_step"] + in_place <= old["last_step"] or not is_late:
            yield f"{names[new['number']]} is made over {names[old['number']]}, which is still needed"
    if sorted(number for step in steps for number in step["writes"]) != list(range(len(buffers))):
        yield "not every buffer is written by one step"
    for step in steps:
        name = f"step {step['number']} ({step['name']})"
        for read in step["reads"]:
            if read["buffer"] is None:
                if read["value"] not in inputs:
                    yield f"{name} reads {read['value']} from nowhere"
                continue
            source, source_name = buffers[read["buffer"]], names[read["buffer"]]
            pairs = zip(source["region"], read["region"], strict=True)
            if not all(have[0] <= want[0] and want[1] <= have[1] for have, want in pairs):
                yield f"{name} reads more than {source_name} holds"
            if not source["first_step"] < step["number"] <= source["last_step"]:
                yield f"{name} reads {source_name}, which is there in other steps only"
            # Tile by tile it follows the step that makes the buffer, or else it waits for all of it; what is
            # put together arrives part by part.
            ready_s = source["start_s"] if read["tiles"] else source["made_s"]
            if step["start_s" if step["operators"] else "end_s"] < ready_s - ROUNDING_S:
                yield f"{name} reads {source_name} before it is made"
        for earlier in step["after"]:
            if step["start_s"] < steps[earlier]["end_s"] - ROUNDING_S:
                yield f"{name} starts before step {earlier} has ended, whose place it takes"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        read_plan = json.load(file)["plan"]
    found = list(problems(read_plan))
    print(f"{len(read_plan['steps'])} steps, {len(read_plan['buffers'])} buffers, {len(found)} problems")
    sys.exit("\n".join(found) or None)
