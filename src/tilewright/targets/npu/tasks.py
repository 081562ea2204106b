"""The steps of a plan as tasks of one cluster's units, which wait for data, for places and for free bytes.

Kernels and groups of cores begin and end here; the tiles of a step are in `tile_tasks.py`.
"""

from __future__ import annotations

from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.events import NOWHERE, TaskGraph
from tilewright.targets.npu.groups import StepGroup
from tilewright.targets.npu.kernels import Kernel
from tilewright.targets.npu.pools import Pool
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.tile_tasks import ClusterTasks, TileTasks


class StepTasks(ClusterTasks):
    """All tiles of all steps as tasks. Steps are added in their order.

    A kernel that is launched separately starts when those of its group before it and all of earlier stages
    have ended and its cores are free, keeps these to its end, and leaves nothing on the chip. A section of
    lanes within it starts when the cores have done all before it, and what follows when they have done it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        overheads = self.machine.overheads
        self.barrier_s = overheads.barrier_ns * 1e-9
        self.launch_s = overheads.kernel_launch_ns * 1e-9
        self.join_s = overheads.join_ns * 1e-9
        self._pools: dict[int, tuple[Pool, Pool | None]] = {}  # of each group: in its cores, and beside
        self._first = 0  # of the kernel's tasks
        self._stages: list[int] = []  # after which all of earlier stages have ended
        self._groups: dict[int, int] = {}  # of this stage: after which its kernels so far have ended
        self._section: int | None = None  # of lanes of the kernel; none: all of its cores work together
        self._section_first = 0  # of the tasks since it began
        self._section_bytes = 0  # of the shared buffer, which pass for its lanes
        self._section_pools: list[int] = []  # after which these are free
        self._lanes: dict[int, tuple[int, Pool, Pool | None]] = {}  # queues, cores' buffers, what passes
        self._num_lanes = 0  # of all kernels so far

    def finished(self) -> TaskGraph:
        """All tasks, with what comes after the last step."""
        self._end_kernel()
        if len(self._groups) > 1:
            self._join()
        return self.tasks

    def _enter(self, group: StepGroup) -> None:
        """What follows is for the cores of a group."""
        self.group = group
        if group.number not in self._pools:
            local, shared = self.ports.local, self.ports.shared
            passing = None if shared is None else Pool(self.tasks, shared.name, group.pools.shared_bytes)
            self._pools[group.number] = Pool(self.tasks, local.name, group.pools.local_bytes), passing
            if shared is not None and len(self._pools) == 1:
                self.shared = Pool(self.tasks, shared.name, group.common_bytes)
        self.local, self.passing = self._pools[group.number]

    def _start_kernel(self, kernel: Kernel, number: int) -> None:
        """Launch a kernel, of which step `number` is the first."""
        last = self.kernel
        self._end_kernel()
        if last is not None and last.stage != kernel.stage:
            self._stages = [self._join()]
            self._groups = {}
        before = self._groups.get(kernel.group)
        gates = self._stages if before is None else [before]
        self._first = self.tasks.num_tasks
        self.before = [self.tasks.hold(kernel.num_cores, self.launch_s, (number, -2, 0), gates)]
        self.kernel = kernel
        self.open(kernel.pools)
        self.lane, self.gate, self._section, self._lanes = None, [], None, {}
        self._section_first, self._section_bytes = self.tasks.num_tasks, 0

    def _enter_lane(self, step: SimulatedStep, kernel: Kernel) -> None:
        """What follows is for the cores of a lane, or for all of the kernel's."""
        section = None if step.lane is None else step.lane.section
        if section != self._section:
            self._enter_section(section, step, kernel)
        self.lane = step.lane
        if step.lane is None:
            return
        number, pools = step.lane.number, step.lane.pools
        if number not in self._lanes:
            self._num_lanes += 1
            local = Pool(self.tasks, self.ports.local.name, pools.local_bytes)
            shared = self.ports.shared
            passing = None
            if shared is not None:
                passing = Pool(self.tasks, shared.name, pools.shared_bytes, self._section_pools)
            self._lanes[number] = -self._num_lanes, local, passing
        self.queues, self.local, self.passing = self._lanes[number]

    def _enter_section(self, section: int | None, step: SimulatedStep, kernel: Kernel) -> None:
        """The cores are given out anew when they have done all that they had to do.

        What comes to the shared buffer meanwhile waits for no more than its place there.
        """
        since = range(self._section_first, self.tasks.num_tasks)
        units = self.tasks.units
        busy = [t for t in since if units[t] != NOWHERE and self.uses_cores(units[t])]
        if busy:
            self.gate = [self.tasks.add(NOWHERE, self.barrier_s, (step.number, -1, 0), "", busy)]
        if self.shared is not None:
            self.shared.release(self._section_bytes, [*since, *self._section_pools])
        self._section, self._section_first, self._section_bytes = section, self.tasks.num_tasks, 0
        self._lanes, self._section_pools = {}, []
        self.local, self.passing = Pool(self.tasks, self.local.name, kernel.pools.local_bytes), self.shared
        if step.lane is not None and self.shared is not None and step.lane.section_bytes:
            self._section_bytes = step.lane.section_bytes
            self._section_pools = self.shared.take(self._section_bytes)

    def _join(self) -> int:
        """The task after which all groups of this stage have ended, and are known to have."""
        groups = self._groups.values()
        if len(groups) == 1 or not self.join_s:
            return self.tasks.join(groups)
        return self.tasks.add(NOWHERE, self.join_s, (0, 0, 0), "", groups)

    def _end_kernel(self) -> None:
        if self.kernel is not None:
            every = range(self._first, self.tasks.num_tasks)
            self._groups[self.kernel.group] = self.tasks.free(self.kernel.num_cores, every)

    def add(self, step: SimulatedStep) -> None:
        """The tasks of the next step."""
        if step.kernel is not None and step.kernel != self.kernel:
            self._start_kernel(step.kernel, step.number)
        if step.kernel is not None:
            self._enter_lane(step, step.kernel)
        if step.group is not None:
            self._enter(step.group)
        first = self.tasks.num_tasks
        TileTasks(self, step).add()
        is_passed_on = step.kind is not Kind.INSTANCE
        products = [work.products for work in step.works if work.products is not None]
        # What products read and write of the cores' buffers is what their mappings count.
        read = [load for load in step.loads if not products or load.value not in step.multiplied]
        read_bytes = 0 if is_passed_on else sum(load.size_bytes for load in read)
        arrived = counted = 0
        for load, passage in zip(step.loads, step.tiling.loads, strict=True):
            size_bytes = load.moved_bytes if load.scope is Scope.LOCAL else passage.moved_bytes
            arrived += 0 if is_passed_on or passage.is_counted else size_bytes
            counted += size_bytes if passage.is_counted else 0
        made_bytes = 0 if products else sum(store.size_bytes for store in step.stores)
        self.account.charges = True
        self.account.local(read_bytes + step.tiling.again_bytes, arrived + made_bytes)
        self.account.mapped(0, counted)
        for x in products:
            self.account.mapped(*x.local_bytes(self.ports.local.name))
        if self.policy.overlap != "layers":
            everything = range(first, self.tasks.num_tasks) if self.policy.overlap == "tiles" else self.before
            self.before = [self.tasks.add(NOWHERE, self.barrier_s, (step.number, 0, 0), "", everything)]
