"""How threads share the steps of a recurrent layer: text of the kernel around one function.

The units of each direction are cut into *shares*, and the chunks of the launch, as many as there are shares
of all directions, are *participants*. A participant goes through all steps of its direction: it computes in a
step first the shares that it computed in the step before, whose weights its core has in its caches, and then
those that no other has taken for a while. A share is taken by a compare-and-swap on its word, which holds the
number of steps that it was taken for; a counter of all shares that are finished says where the steps
are: a step begins when all shares of the one before are. Then the participant helps with other directions.
Every other step goes through shares from the last to the first, so that the weights that come first are those
that caches have kept, where they do not hold all.

A step of several phases takes as many turns: what is said of steps here holds for turns.

So no step waits for a thread that never comes (a run has fewer threads than participants) or comes late:
others take over its shares, and give some back once it is there. Which thread computes a share changes no
bit of it.
"""

from __future__ import annotations

from string import Template

from tilewright.records import dataclass
from tilewright.targets.cpu.runtime.pool_ir import pause_ir

MAX_SHARES = 32
"""Of a direction at most: those that one participant has are bits of a word."""
WORD_BYTES = 64
"""Words that different threads write are a cache line apart."""
SHARE_FUNCTION = "compute_share"
# Pauses for which a thread that has shares leaves alone those of others.
_PATIENCE = 48
# A thread that waits gives up its time slice every so many pauses (a power of two, less one): another process
# may keep the thread that it waits for from its core.
_YIELD_MASK = 255
# After so many it sleeps instead, which leaves its core to the thread that it waits for.
_SLEEP_LIMIT = 4096


def sync_bytes(num_groups: int, num_shares: int) -> int:
    """Of each direction's counter and the words of its shares, zero at first."""
    return num_groups * (1 + num_shares) * WORD_BYTES


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the work is cut: `num_shares` of each of so many directions, in each of a step's phases."""

    num_groups: int
    num_shares: int
    num_steps: int
    num_phases: int


def participant_ir(sharing: Sharing, sync_arg: int, symbol: str, triple: str) -> str:
    """The kernel `symbol`, whose argument `sync_arg` is the memory of `sync_bytes`.

    It calls `SHARE_FUNCTION(args, share, turn)`; shares are numbered direction by direction, turns step by
    step.
    """
    declare, pause = pause_ir(triple)
    num_shares = sharing.num_shares
    return _IR.substitute(
        symbol=symbol,
        sync_at=8 * sync_arg,
        groups=sharing.num_groups,
        group_bytes=sync_bytes(1, num_shares),
        shares=num_shares,
        last_share=num_shares - 1,
        half=num_shares // 2,
        turns=sharing.num_steps * sharing.num_phases,
        phases=sharing.num_phases,
        word=WORD_BYTES,
        patience=_PATIENCE,
        yield_mask=_YIELD_MASK,
        sleep_limit=_SLEEP_LIMIT,
        function=SHARE_FUNCTION,
        declare_pause=declare,
        pause=pause,
    )


_IR = Template("""
$declare_pause
declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
declare extern_weak i32 @sched_yield()
declare extern_weak i32 @usleep(i32)

; Takes a share for a step: false where somebody has.
define internal i1 @take(ptr %sync, i64 %share, i64 %step) nounwind {
  %line = add i64 %share, 1
  %offset = mul i64 %line, $word
  %at = getelementptr i8, ptr %sync, i64 %offset
  %known = load atomic i64, ptr %at monotonic, align 8
  %is_free = icmp eq i64 %known, %step
  br i1 %is_free, label %try, label %taken
try:
  %next = add i64 %step, 1
  %swap = cmpxchg ptr %at, i64 %step, i64 %next acq_rel monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  ret i1 %won
taken:
  ret i1 false
}

; One participant, which looks for shares from its own place on; the shares of its direction begin at %base.
define internal void @participate(ptr %args, ptr %sync, i64 %self, i64 %base) nounwind {
entry:
  %is_high = icmp uge i64 %self, $half
  %way = select i1 %is_high, i64 $last_share, i64 1
  %finished_before = load atomic i64, ptr %sync acquire, align 8
  %first_step = udiv i64 %finished_before, $shares
  br label %step
step:
  %t = phi i64 [%first_step, %entry], [%t1, %next]
  %mine = phi i64 [0, %entry], [%owned, %next]
  %step_number = udiv i64 %t, $phases
  %parity = and i64 %step_number, 1
  %is_odd = icmp ne i64 %parity, 0
  %is_over = icmp uge i64 %t, $turns
  br i1 %is_over, label %exit, label %keep
keep:
  %left = phi i64 [%mine, %step], [%rest, %kept]
  %have = phi i64 [0, %step], [%have1, %kept]
  %count = phi i64 [0, %step], [%count1, %kept]
  %none = icmp eq i64 %left, 0
  br i1 %none, label %report, label %ask
ask:
  %lowest = call i64 @llvm.cttz.i64(i64 %left, i1 true)
  %above = call i64 @llvm.ctlz.i64(i64 %left, i1 true)
  %highest = sub i64 63, %above
  %share = select i1 %is_odd, i64 %highest, i64 %lowest
  %bit = shl i64 1, %share
  %rest = xor i64 %left, %bit
  %won = call i1 @take(ptr %sync, i64 %share, i64 %t)
  br i1 %won, label %run, label %kept
run:
  %share_run = add i64 %base, %share
  call void @$function(ptr %args, i64 %share_run, i64 %t)
  %have_run = or i64 %have, %bit
  %count_run = add i64 %count, 1
  br label %kept
kept:
  %have1 = phi i64 [%have, %ask], [%have_run, %run]
  %count1 = phi i64 [%count, %ask], [%count_run, %run]
  br label %keep
report:
  %any = icmp ne i64 %count, 0
  br i1 %any, label %tell, label %wait
tell:
  %before = atomicrmw add ptr %sync, i64 %count acq_rel
  br label %wait
wait:
  %is_new = icmp eq i64 %mine, 0
  %patience = select i1 %is_new, i64 0, i64 $patience
  %t1 = add i64 %t, 1
  %target = mul i64 %t1, $shares
  br label %spin
spin:
  %k = phi i64 [0, %wait], [%k1, %pause], [%k1, %sleep], [%k1, %give], [%k, %steal]
  %owned = phi i64 [%have, %wait], [%owned, %pause], [%owned, %sleep], [%owned, %give], [%owned_more, %steal]
  %done = load atomic i64, ptr %sync acquire, align 8
  %is_done = icmp uge i64 %done, %target
  br i1 %is_done, label %next, label %patient
patient:
  %looks = icmp uge i64 %k, %patience
  br i1 %looks, label %look, label %pause
look:
  %i = phi i64 [0, %patient], [%i1, %other]
  %candidate = phi i64 [%self, %patient], [%candidate1, %other]
  %taken = call i1 @take(ptr %sync, i64 %candidate, i64 %t)
  br i1 %taken, label %steal, label %other
other:
  %i1 = add i64 %i, 1
  %moved = add i64 %candidate, %way
  %candidate1 = urem i64 %moved, $shares
  %again = icmp ult i64 %i1, $shares
  br i1 %again, label %look, label %pause
steal:
  %share_steal = add i64 %base, %candidate
  call void @$function(ptr %args, i64 %share_steal, i64 %t)
  %stolen = atomicrmw add ptr %sync, i64 1 acq_rel
  %stolen_bit = shl i64 1, %candidate
  %owned_more = or i64 %owned, %stolen_bit
  br label %spin
pause:
  $pause
  %k1 = add i64 %k, 1
  %since = and i64 %k1, $yield_mask
  %is_long = icmp eq i64 %since, 0
  %can_yield = icmp ne ptr @sched_yield, null
  %yields = and i1 %is_long, %can_yield
  br i1 %yields, label %yield, label %spin
yield:
  %sleeps = icmp uge i64 %k1, $sleep_limit
  %can_sleep = icmp ne ptr @usleep, null
  %rests = and i1 %sleeps, %can_sleep
  br i1 %rests, label %sleep, label %give
sleep:
  %slept = call i32 @usleep(i32 20)
  br label %spin
give:
  %gave = call i32 @sched_yield()
  br label %spin
next:
  br label %step
exit:
  ret void
}

define void $symbol(ptr %args, i64 %self, ptr %scratch) nounwind {
entry:
  %sync_at = getelementptr i8, ptr %args, i64 $sync_at
  %sync = load ptr, ptr %sync_at, align 8
  %first = udiv i64 %self, $shares
  %place = urem i64 %self, $shares
  br label %group
group:
  %i = phi i64 [0, %entry], [%i1, %group]
  %later = add i64 %first, %i
  %g = urem i64 %later, $groups
  %offset = mul i64 %g, $group_bytes
  %group_sync = getelementptr i8, ptr %sync, i64 %offset
  %base = mul i64 %g, $shares
  call void @participate(ptr %args, ptr %group_sync, i64 %place, i64 %base)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, $groups
  br i1 %more, label %group, label %exit
exit:
  ret void
}
""")
