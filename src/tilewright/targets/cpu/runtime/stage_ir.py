"""The code that runs a stage: groups of kernels that progress independently on one pool of threads.

A stage is one region of the pool (`pool_ir`) whose chunks are *participants*: a thread that claims one works
for the stage until all its groups have ended. So a stage begins and ends as any region does: late workers
join it or find it gone, its caller alone can do all of its work, and its state, which lies on the caller's
stack, outlives every participant.

Each group is a sequence of launches. Its state is one 64-bit word, `position | high | low`: `[low, high)` are
the tickets of launch `position` that no thread has claimed, for chunks as in regions. Participants claim them
by compare-and-swap, the first half of them from the low end and the others from the high end. `pending`
counts chunks of that launch which are not reported as done. Why this is right:

* A chunk runs once, and what runs is the chunk that was claimed: launch and chunk are both in the word, and a
  word never comes back, since `position` grows and within a position the interval shrinks.
* A launch begins when the one before has ended: the thread that reports the last chunk of a launch, and only
  that, puts the next one into the word. Until it reports, none puts another launch there, so all chunks
  that a thread claims between two reports are of one launch, and `pending` may be set for the next launch
  before its chunks can be seen. What chunks wrote is seen by the next launch: reports are read-modify-writes
  of one word (a release sequence), the last of them acquires it, and releases it with the next word.
* A launch of a single chunk runs on the thread that ended the launch before, without being published.
* No deadlock: a participant waits only while every chunk that it may claim is claimed by others, which run
  and report theirs without waiting. A published launch always has a thread that looks at it, the one
  that published it, whatever the limit of its group.
* No lost wake-up: a participant reads the word `progress` before it looks at the groups, and sleeps only
  while it has not changed. Whatever may give others work (a launch published, a group ended, a thread that
  leaves a group with a limit) is followed by a change of `progress`, then by a look for sleepers; those
  announce themselves before they compare `progress` a last time. All of these are sequentially consistent.

`active` is how many threads work on a group: no more than its limit. A thread stays with its group as long as
that has chunks, so that what a kernel leaves in a core's cache is read there; then it goes where, by
estimate, each thread would have most left to do, to the first of equals. So groups of like length have a
thread of their own, while a long one is shared from its beginning: what is left for the end are the small
chunks of short groups. Groups with less than `NEAR_WORK` left are shared, too: a chunk of a small kernel
reads most of what the same chunk of the kernel before wrote, which lies in the cache of the core that ran it
(measured: four kernels of 50 us take 140 us shared and 200 us with a thread each, two of 700 us 760 and 720).
Which thread runs what changes no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNLIMITED: Final = (1 << 31) - 1
"""The limit of a group on which any number of threads may work."""

NEAR_WORK: Final = 1e6
"""Estimated cycles of what a group has left, below which threads do not part for groups of their own."""

# Words of 32 bits that describe a stage: how many groups there are, how many threads find work at most, how
# many launches there are, how much work is near the end; for each group its first launch, its number of
# launches, its limit; for each launch its chunks, the estimated work of one of them, and of all that its
# group has left behind it.
HEAD_WORDS: Final = 4
NUM_LAUNCHES_WORD: Final = 2
GROUP_WORDS: Final = 3
LAUNCH_WORDS: Final = 3
_MAX_WORK: Final = 1 << 30

GroupShape = tuple[Sequence[tuple[int, float]], int | None]
"""The launches of a group, each its chunks and the work of one of them, and its limit."""

STAGE_EXPORT = "tw_run_stage"


def stage_table(groups: Sequence[GroupShape]) -> tuple[int, ...]:
    """What `tw_run_stage` reads of groups, whose work is in estimated cycles.

    >>> stage_table([(((4, 1.0), (1, 4.0)), None), (((2, 1.0),), 1)])[:10]
    (2, 5, 3, 2147483647, 0, 2, 2147483647, 2, 1, 1)
    >>> stage_table([(((4, 1.0), (1, 4.0)), None), (((2, 1.0),), 1)])[10:]
    (4, 134217728, 536870912, 1, 536870912, 0, 2, 134217728, 0)
    """
    limits = [UNLIMITED if limit is None else limit for _, limit in groups]
    useful = sum(min(max(n for n, _ in work), most) for (work, _), most in zip(groups, limits, strict=True))
    longest = max(sum(n * each for n, each in work) for work, _ in groups)
    scale = _MAX_WORK / longest if longest > 0 else 0.0
    rows: list[int] = []
    launches: list[int] = []
    for (work, _), limit in zip(groups, limits, strict=True):
        rows += (len(launches) // LAUNCH_WORDS, len(work), limit)
        left = sum(n * each for n, each in work)
        for n, each in work:
            left -= n * each
            launches += (n, int(scale * each), max(0, int(scale * left)))
    near = min(UNLIMITED, int(scale * NEAR_WORK))
    head = (len(groups), min(useful, UNLIMITED), len(launches) // LAUNCH_WORDS, near)
    return (*head, *rows, *launches)


# Byte offsets in the state of a stage. Words written by different threads are two cache lines apart.
OFFSETS = {
    "STAGE_RUN": 0,
    "STAGE_TABLE": 8,
    "STAGE_ARGUMENTS": 16,
    "STAGE_NUM_LOW": 24,
    "STAGE_SPINS": 32,
    "STAGE_UNFINISHED": 128,
    "STAGE_PROGRESS": 132,
    "STAGE_SLEEPERS": 136,
    "STAGE_GROUPS": 256,
    "GROUP_BYTES": 128,
    "GROUP_PENDING": 8,
    "GROUP_ACTIVE": 12,
    "HEAD_BYTES": 4 * HEAD_WORDS,
    "GROUP_ROW_BYTES": 4 * GROUP_WORDS,
    "LAUNCH_ROW_BYTES": 4 * LAUNCH_WORDS,
    "together": 1 << 40,
}

STAGE_IR = """
; Tells participants that wait for work to look again.
define internal void @tell_stage(ptr %state) {
entry:
  %progress = getelementptr i8, ptr %state, i64 $STAGE_PROGRESS
  %sleepers = getelementptr i8, ptr %state, i64 $STAGE_SLEEPERS
  %told = atomicrmw add ptr %progress, i32 1 seq_cst
  %s = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %s, 0
  br i1 %any, label %wake, label %exit
wake:
  %cleared = atomicrmw xchg ptr %sleepers, i32 0 seq_cst
  call void @wake_all(ptr %progress)
  br label %exit
exit:
  ret void
}

define internal ptr @launch_row(ptr %table, i64 %launch) {
  %num_groups32 = load i32, ptr %table, align 4
  %num_groups = zext i32 %num_groups32 to i64
  %rows = mul i64 %num_groups, $GROUP_ROW_BYTES
  %from = add i64 %rows, $HEAD_BYTES
  %index = mul i64 %launch, $LAUNCH_ROW_BYTES
  %at = add i64 %from, %index
  %row = getelementptr i8, ptr %table, i64 %at
  ret ptr %row
}

define internal i32 @chunks_of(ptr %table, i64 %launch) {
  %row = call ptr @launch_row(ptr %table, i64 %launch)
  %chunks = load i32, ptr %row, align 4
  ret i32 %chunks
}

; Work that a group has left, by its word: of chunks nobody claimed, and of the launches behind; at least 1.
define internal i64 @left_of(ptr %table, i64 %first, i64 %word) {
  %position = lshr i64 %word, $epoch_shift
  %launch = add i64 %first, %position
  %row = call ptr @launch_row(ptr %table, i64 %launch)
  %each_at = getelementptr i8, ptr %row, i64 4
  %each32 = load i32, ptr %each_at, align 4
  %each = zext i32 %each32 to i64
  %behind_at = getelementptr i8, ptr %row, i64 8
  %behind32 = load i32, ptr %behind_at, align 4
  %behind = zext i32 %behind32 to i64
  %low = and i64 %word, $mask
  %shifted = lshr i64 %word, $bits
  %high = and i64 %shifted, $mask
  %num = sub i64 %high, %low
  %here = mul i64 %num, %each
  %sum = add i64 %here, %behind
  %some = add i64 %sum, 1
  ret i64 %some
}

; A thread's part in a stage: claims and runs chunks of any group until all have ended.
define internal void @participate(ptr %state, i64 %participant, ptr %scratch) {
entry:
  %run = load ptr, ptr %state, align 8
  %table_at = getelementptr i8, ptr %state, i64 $STAGE_TABLE
  %table = load ptr, ptr %table_at, align 8
  %arguments_at = getelementptr i8, ptr %state, i64 $STAGE_ARGUMENTS
  %arguments = load ptr, ptr %arguments_at, align 8
  %num_low_at = getelementptr i8, ptr %state, i64 $STAGE_NUM_LOW
  %num_low = load i64, ptr %num_low_at, align 8
  %spins_at = getelementptr i8, ptr %state, i64 $STAGE_SPINS
  %spins = load i64, ptr %spins_at, align 8
  %num_groups = load i32, ptr %table, align 4
  %near_at = getelementptr i8, ptr %table, i64 12
  %near32 = load i32, ptr %near_at, align 4
  %near = zext i32 %near32 to i64
  %unfinished = getelementptr i8, ptr %state, i64 $STAGE_UNFINISHED
  %progress = getelementptr i8, ptr %state, i64 $STAGE_PROGRESS
  %sleepers = getelementptr i8, ptr %state, i64 $STAGE_SLEEPERS
  %groups = getelementptr i8, ptr %state, i64 $STAGE_GROUPS
  %first_row = getelementptr i8, ptr %table, i64 $HEAD_BYTES
  %from_low = icmp ult i64 %participant, %num_low
  %step = select i1 %from_low, i64 1, i64 $minus_high
  br label %look
look:
  %seen = load atomic i32, ptr %progress seq_cst, align 4
  %open = load atomic i32, ptr %unfinished seq_cst, align 4
  %over = icmp eq i32 %open, 0
  br i1 %over, label %exit, label %scan
scan:
  %g = phi i32 [0, %look], [%g1, %next_group]
  %best = phi i32 [-1, %look], [%best1, %next_group]
  %fewest = phi i32 [0, %look], [%fewest1, %next_group]
  %most = phi i64 [0, %look], [%most1, %next_group]
  %g64 = zext i32 %g to i64
  %at = mul i64 %g64, $GROUP_BYTES
  %group_scanned = getelementptr i8, ptr %groups, i64 %at
  %word_scanned = load atomic i64, ptr %group_scanned monotonic, align 8
  %nothing = call i1 @is_empty(i64 %word_scanned)
  br i1 %nothing, label %next_group, label %weigh
weigh:
  %active_scanned_at = getelementptr i8, ptr %group_scanned, i64 $GROUP_ACTIVE
  %active_scanned = load atomic i32, ptr %active_scanned_at seq_cst, align 4
  %row_at = mul i64 %g64, $GROUP_ROW_BYTES
  %row = getelementptr i8, ptr %first_row, i64 %row_at
  %limit_at = getelementptr i8, ptr %row, i64 8
  %limit = load i32, ptr %limit_at, align 4
  %allowed = icmp ult i32 %active_scanned, %limit
  %scanned_first32 = load i32, ptr %row, align 4
  %scanned_first = zext i32 %scanned_first32 to i64
  %left_scanned = call i64 @left_of(ptr %table, i64 %scanned_first, i64 %word_scanned)
  %with_me = add i32 %active_scanned, 1
  %with_me64 = zext i32 %with_me to i64
  %share = udiv i64 %left_scanned, %with_me64
  %apart = add i64 %share, 1
  %shared = add i64 %left_scanned, $together
  %is_begun = icmp ne i32 %active_scanned, 0
  %is_near = icmp ult i64 %left_scanned, %near
  %stays_near = and i1 %is_begun, %is_near
  %share_some = select i1 %stays_near, i64 %shared, i64 %apart
  %longer = icmp ugt i64 %share_some, %most
  %better = and i1 %allowed, %longer
  %best_now = select i1 %better, i32 %g, i32 %best
  %most_now = select i1 %better, i64 %share_some, i64 %most
  %fewest_now = select i1 %better, i32 %active_scanned, i32 %fewest
  br label %next_group
next_group:
  %best1 = phi i32 [%best, %scan], [%best_now, %weigh]
  %fewest1 = phi i32 [%fewest, %scan], [%fewest_now, %weigh]
  %most1 = phi i64 [%most, %scan], [%most_now, %weigh]
  %g1 = add i32 %g, 1
  %more = icmp ult i32 %g1, %num_groups
  br i1 %more, label %scan, label %choose
choose:
  %found = icmp sge i32 %best1, 0
  br i1 %found, label %enter, label %spin

enter:
  %b64 = zext i32 %best1 to i64
  %b_at = mul i64 %b64, $GROUP_BYTES
  %group = getelementptr i8, ptr %groups, i64 %b_at
  %pending = getelementptr i8, ptr %group, i64 $GROUP_PENDING
  %active = getelementptr i8, ptr %group, i64 $GROUP_ACTIVE
  %b_row_at = mul i64 %b64, $GROUP_ROW_BYTES
  %b_row = getelementptr i8, ptr %first_row, i64 %b_row_at
  %first32 = load i32, ptr %b_row, align 4
  %first = zext i32 %first32 to i64
  %launches_at = getelementptr i8, ptr %b_row, i64 4
  %launches32 = load i32, ptr %launches_at, align 4
  %launches = zext i32 %launches32 to i64
  %b_limit_at = getelementptr i8, ptr %b_row, i64 8
  %b_limit = load i32, ptr %b_limit_at, align 4
  %one_more = add i32 %fewest1, 1
  %entry_swap = cmpxchg ptr %active, i32 %fewest1, i32 %one_more seq_cst seq_cst
  %entered = extractvalue { i32, i1 } %entry_swap, 1
  br i1 %entered, label %fetch, label %look

fetch:
  %count = phi i32 [0, %enter], [%count1, %claimed], [0, %publish]
  %word = load atomic i64, ptr %group acquire, align 8
  br label %try
try:
  %w = phi i64 [%word, %fetch], [%changed, %claim]
  %none = call i1 @is_empty(i64 %w)
  br i1 %none, label %drained, label %claim
claim:
  %claimed_word = add i64 %w, %step
  %swap = cmpxchg ptr %group, i64 %w, i64 %claimed_word seq_cst seq_cst
  %changed = extractvalue { i64, i1 } %swap, 0
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %claimed, label %try
claimed:
  %low = and i64 %w, $mask
  %shifted = lshr i64 %w, $bits
  %high = and i64 %shifted, $mask
  %top = add i64 %high, -1
  %ticket = select i1 %from_low, i64 %low, i64 %top
  %position = lshr i64 %w, $epoch_shift
  %launch = add i64 %first, %position
  %num_chunks32 = call i32 @chunks_of(ptr %table, i64 %launch)
  %num_chunks = zext i32 %num_chunks32 to i64
  %chunk = call i64 @chunk_of(i64 %ticket, i64 %num_chunks)
  call void %run(ptr %arguments, i64 %launch, i64 %chunk, ptr %scratch)
  %count1 = add i32 %count, 1
  br label %fetch

drained:
  %idle = icmp eq i32 %count, 0
  br i1 %idle, label %leave, label %report
report:
  %before = atomicrmw sub ptr %pending, i32 %count seq_cst
  %last = icmp eq i32 %before, %count
  br i1 %last, label %ended, label %leave
ended:
  %ended_position = lshr i64 %w, $epoch_shift
  br label %advance
advance:
  %done = phi i64 [%ended_position, %ended], [%next, %single]
  %next = add i64 %done, 1
  %is_last = icmp eq i64 %next, %launches
  br i1 %is_last, label %finish, label %begin
begin:
  %next_launch = add i64 %first, %next
  %chunks = call i32 @chunks_of(ptr %table, i64 %next_launch)
  %is_single = icmp eq i32 %chunks, 1
  br i1 %is_single, label %single, label %publish
single:
  call void %run(ptr %arguments, i64 %next_launch, i64 0, ptr %scratch)
  br label %advance
publish:
  store atomic i32 %chunks, ptr %pending monotonic, align 4
  %next_up = shl i64 %next, $epoch_shift
  %chunks64 = zext i32 %chunks to i64
  %high_up = shl i64 %chunks64, $bits
  %next_word = or i64 %next_up, %high_up
  store atomic i64 %next_word, ptr %group seq_cst, align 8
  call void @tell_stage(ptr %state)
  br label %fetch
finish:
  %ended_groups = atomicrmw sub ptr %unfinished, i32 1 seq_cst
  call void @tell_stage(ptr %state)
  br label %leave
leave:
  %was_active = atomicrmw sub ptr %active, i32 1 seq_cst
  %is_limited = icmp ne i32 %b_limit, $unlimited
  br i1 %is_limited, label %give_way, label %look
give_way:
  call void @tell_stage(ptr %state)
  br label %look

spin:
  %k = phi i64 [0, %choose], [%k1, %again], [%k1, %rest]
  %now = load atomic i32, ptr %progress seq_cst, align 4
  %moved = icmp ne i32 %now, %seen
  br i1 %moved, label %look, label %pause
pause:
  $pause
  %k1 = add i64 %k, 1
  %enough = icmp ugt i64 %k1, %spins
  br i1 %enough, label %announce, label %again
again:
  %since = and i64 %k1, $yield_mask
  %yields = icmp eq i64 %since, 0
  br i1 %yields, label %rest, label %spin
rest:
  call void @yield()
  br label %spin
announce:
  %announced = atomicrmw xchg ptr %sleepers, i32 1 seq_cst
  %still = load atomic i32, ptr %progress seq_cst, align 4
  %same = icmp eq i32 %still, %seen
  br i1 %same, label %sleep, label %look
sleep:
  call void @sleep_while(ptr %progress, i32 %seen)
  br label %look
exit:
  ret void
}

; Runs a stage to its end: `%run(args, launch, chunk, scratch)` runs a chunk, `%table` describes the groups.
; A null pool runs group after group on the calling thread.
define void @tw_run_stage(ptr %pool, ptr %run, ptr %table, ptr %args, ptr %scratch) {
entry:
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %serial, label %share
serial:
  %num_launches_at = getelementptr i8, ptr %table, i64 8
  %num_launches32 = load i32, ptr %num_launches_at, align 4
  %num_launches = zext i32 %num_launches32 to i64
  br label %launch
launch:
  %l = phi i64 [0, %serial], [%l1, %next_launch]
  %n32 = call i32 @chunks_of(ptr %table, i64 %l)
  %n = zext i32 %n32 to i64
  br label %chunk
chunk:
  %c = phi i64 [0, %launch], [%c1, %chunk]
  call void %run(ptr %args, i64 %l, i64 %c, ptr %scratch)
  %c1 = add i64 %c, 1
  %more_chunks = icmp ult i64 %c1, %n
  br i1 %more_chunks, label %chunk, label %next_launch
next_launch:
  %l1 = add i64 %l, 1
  %more_launches = icmp ult i64 %l1, %num_launches
  br i1 %more_launches, label %launch, label %exit

share:
  %num_groups = load i32, ptr %table, align 4
  %num_groups64 = zext i32 %num_groups to i64
  %groups_bytes = mul i64 %num_groups64, $GROUP_BYTES
  %state_bytes = add i64 %groups_bytes, $STAGE_GROUPS
  %state = alloca i8, i64 %state_bytes, align 128
  store ptr %run, ptr %state, align 8
  %table_at = getelementptr i8, ptr %state, i64 $STAGE_TABLE
  store ptr %table, ptr %table_at, align 8
  %arguments_at = getelementptr i8, ptr %state, i64 $STAGE_ARGUMENTS
  store ptr %args, ptr %arguments_at, align 8
  %spin_limit_at = getelementptr i8, ptr %pool, i64 $SPIN_LIMIT
  %spin_limit = load i64, ptr %spin_limit_at, align 8
  %spins_at = getelementptr i8, ptr %state, i64 $STAGE_SPINS
  store i64 %spin_limit, ptr %spins_at, align 8
  %unfinished = getelementptr i8, ptr %state, i64 $STAGE_UNFINISHED
  store atomic i32 %num_groups, ptr %unfinished monotonic, align 4
  %progress = getelementptr i8, ptr %state, i64 $STAGE_PROGRESS
  store atomic i32 0, ptr %progress monotonic, align 4
  %sleepers = getelementptr i8, ptr %state, i64 $STAGE_SLEEPERS
  store atomic i32 0, ptr %sleepers monotonic, align 4
  %threads_at = getelementptr i8, ptr %pool, i64 $NUM_THREADS
  %threads = load i64, ptr %threads_at, align 8
  %useful_at = getelementptr i8, ptr %table, i64 4
  %useful32 = load i32, ptr %useful_at, align 4
  %useful = zext i32 %useful32 to i64
  %is_narrow = icmp ult i64 %useful, %threads
  %participants = select i1 %is_narrow, i64 %useful, i64 %threads
  %rounded = add i64 %participants, 1
  %num_low = lshr i64 %rounded, 1
  %num_low_at = getelementptr i8, ptr %state, i64 $STAGE_NUM_LOW
  store i64 %num_low, ptr %num_low_at, align 8
  br label %group
group:
  %g = phi i64 [0, %share], [%g1, %group]
  %row_at = mul i64 %g, $GROUP_ROW_BYTES
  %from = add i64 %row_at, $HEAD_BYTES
  %row = getelementptr i8, ptr %table, i64 %from
  %first32 = load i32, ptr %row, align 4
  %first = zext i32 %first32 to i64
  %chunks = call i32 @chunks_of(ptr %table, i64 %first)
  %chunks64 = zext i32 %chunks to i64
  %word = shl i64 %chunks64, $bits
  %offset = mul i64 %g, $GROUP_BYTES
  %at = add i64 %offset, $STAGE_GROUPS
  %group_at = getelementptr i8, ptr %state, i64 %at
  store atomic i64 %word, ptr %group_at monotonic, align 8
  %pending = getelementptr i8, ptr %group_at, i64 $GROUP_PENDING
  store atomic i32 %chunks, ptr %pending monotonic, align 4
  %active = getelementptr i8, ptr %group_at, i64 $GROUP_ACTIVE
  store atomic i32 0, ptr %active monotonic, align 4
  %g1 = add i64 %g, 1
  %more = icmp ult i64 %g1, %num_groups64
  br i1 %more, label %group, label %begin
begin:
  call void @tw_parallel_for(ptr %pool, ptr @participate, ptr %state, i64 %participants, ptr %scratch)
  br label %exit
exit:
  ret void
}
"""
