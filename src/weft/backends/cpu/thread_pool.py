"""A pool of threads as LLVM IR, for processes without an OpenMP library: it needs the system's C library alone.

    weft_parallel(function, context, threads):           # calls function(context, thread, threads) in each thread
        if the pool is busy: function(context, 0, 1)     # for another thread of the program's
        make the threads that there are too few of
        state the job; remaining = workers; generation += 1; wake who sleeps
        function(context, 0, threads)
        wait until remaining == 0

    weft_pool_main(index, generation):                   # a worker, for as long as the process lives
        wait until generation changes
        if index < threads: function(context, index, threads)
        remaining -= 1; wake the caller if it sleeps

Who waits looks for a while, which takes less than a microsecond where the other is about to come, and sleeps on a futex
after that. To be woken takes 50 µs and more where a hypervisor has taken the idle core back, and threads that share a
kernel are often that much apart: so each wait that needed no sleep makes the next one more patient, up to a millisecond
or two, and each sleep makes it half as patient, which is soon the least where other processes want the cores. Who is
about to sleep says so first and looks once more, in this order; who changes a word looks for
sleepers afterwards: so nobody sleeps through a change. A forked child has no workers: `weft_pool_reset` forgets them,
and the next job makes new ones.
"""

from __future__ import annotations

PARALLEL, RESET = "weft_parallel", "weft_pool_reset"

_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {"x86_64": "void @llvm.x86.sse2.pause()", "aarch64": "void @llvm.aarch64.hint(i32 1)"}
_LEAST_LOOKS, _MOST_LOOKS, _MORE_LOOKS = 2000, 32000, 250
"""How often to look before going to sleep: at least for 30 to 100 µs, longer than the gaps between the kernels of a
program; at most; and how many more after a wait that was long enough."""

_TEXT = """
%pool_job = type { ptr, ptr, i64 }
@pool_lock = internal global i32 0, align 128
@pool_workers = internal global i64 0, align 8
@pool_job = internal global %pool_job zeroinitializer, align 128
@pool_generation = internal global i32 0, align 128
@pool_sleepers = internal global i32 0, align 128
@pool_remaining = internal global i32 0, align 128
@pool_waiting = internal global i32 0, align 128
@pool_patience = internal global i64 {least}, align 128
@pool_signals = internal constant [128 x i8] c"{signals}", align 8

declare {declared}
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)

define internal void @pool_wait(ptr %word, i32 %value) nounwind {
  %wide = zext i32 %value to i64
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 128, i64 %wide, ptr null)
  ret void
}

define internal void @pool_wake(ptr %word) nounwind {
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 129, i64 2147483647)
  ret void
}

define internal i64 @pool_patience_after(i64 %patience, i1 %slept) nounwind {
  %longer = add i64 %patience, {more}
  %shorter = lshr i64 %patience, 1
  %wanted = select i1 %slept, i64 %shorter, i64 %longer
  %short = icmp slt i64 %wanted, {least}
  %enough = select i1 %short, i64 {least}, i64 %wanted
  %long = icmp sgt i64 %enough, {most}
  %patience.after = select i1 %long, i64 {most}, i64 %enough
  ret i64 %patience.after
}

define void @weft_parallel(ptr %function, ptr %context, i64 %wanted) nounwind {
entry:
  %id = alloca i64, align 8
  %claim = cmpxchg ptr @pool_lock, i32 0, i32 1 acquire monotonic
  %claimed = extractvalue { i32, i1 } %claim, 1
  br i1 %claimed, label %grow, label %alone
alone:
  call void %function(ptr %context, i64 0, i64 1)
  ret void
grow:
  %workers = load i64, ptr @pool_workers, align 8
  %next = add i64 %workers, 1
  %few = icmp slt i64 %next, %wanted
  br i1 %few, label %create, label %start
create:
  %made.at = load i32, ptr @pool_generation, align 4
  %high = zext i32 %made.at to i64
  %shifted = shl i64 %high, 32
  %packed = or i64 %shifted, %next
  %argument = inttoptr i64 %packed to ptr
  %failed = call i32 @pthread_create(ptr %id, ptr null, ptr @weft_pool_main, ptr %argument)
  %made = icmp eq i32 %failed, 0
  br i1 %made, label %keep, label %start
keep:
  %thread.id = load i64, ptr %id, align 8
  call i32 @pthread_detach(i64 %thread.id)
  store i64 %next, ptr @pool_workers, align 8
  br label %grow
start:
  %most = add i64 %workers, 1
  %enough = icmp slt i64 %wanted, %most
  %threads = select i1 %enough, i64 %wanted, i64 %most
  store ptr %function, ptr @pool_job, align 8
  store ptr %context, ptr getelementptr (%pool_job, ptr @pool_job, i64 0, i32 1), align 8
  store i64 %threads, ptr getelementptr (%pool_job, ptr @pool_job, i64 0, i32 2), align 8
  %count = trunc i64 %workers to i32
  store atomic i32 %count, ptr @pool_remaining monotonic, align 4
  atomicrmw add ptr @pool_generation, i32 1 seq_cst
  %sleepers = load atomic i32, ptr @pool_sleepers seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %wake, label %share
wake:
  call void @pool_wake(ptr @pool_generation)
  br label %share
share:
  call void %function(ptr %context, i64 0, i64 %threads)
  %patience = load i64, ptr @pool_patience, align 8
  br label %look
look:
  %looks = phi i64 [ 0, %share ], [ %looked, %again ]
  %left = load atomic i32, ptr @pool_remaining acquire, align 4
  %over = icmp eq i32 %left, 0
  br i1 %over, label %done, label %again
again:
  call {pause}
  %looked = add i64 %looks, 1
  %patient = icmp slt i64 %looked, %patience
  br i1 %patient, label %look, label %sleep
sleep:
  store atomic i32 1, ptr @pool_waiting seq_cst, align 4
  br label %sleep.look
sleep.look:
  %still = load atomic i32, ptr @pool_remaining seq_cst, align 4
  %ended = icmp eq i32 %still, 0
  br i1 %ended, label %woken, label %sleep.wait
sleep.wait:
  call void @pool_wait(ptr @pool_remaining, i32 %still)
  br label %sleep.look
woken:
  store atomic i32 0, ptr @pool_waiting seq_cst, align 4
  br label %done
done:
  %slept = phi i1 [ false, %look ], [ true, %woken ]
  %changed = call i64 @pool_patience_after(i64 %patience, i1 %slept)
  store i64 %changed, ptr @pool_patience, align 8
  store atomic i32 0, ptr @pool_lock release, align 4
  ret void
}

define ptr @weft_pool_main(ptr %argument) nounwind {
entry:
  %packed = ptrtoint ptr %argument to i64
  %index = and i64 %packed, 4294967295
  %high = lshr i64 %packed, 32
  %made.at = trunc i64 %high to i32
  call i32 @pthread_sigmask(i32 2, ptr @pool_signals, ptr null)
  br label %idle
idle:
  %last = phi i32 [ %made.at, %entry ], [ %current, %finish ], [ %current, %tell ]
  %patience = phi i64 [ {least}, %entry ], [ %patience.next, %finish ], [ %patience.next, %tell ]
  br label %look
look:
  %looks = phi i64 [ 0, %idle ], [ %looked, %again ]
  %seen = load atomic i32, ptr @pool_generation acquire, align 4
  %changed = icmp ne i32 %seen, %last
  br i1 %changed, label %work, label %again
again:
  call {pause}
  %looked = add i64 %looks, 1
  %patient = icmp slt i64 %looked, %patience
  br i1 %patient, label %look, label %sleep
sleep:
  atomicrmw add ptr @pool_sleepers, i32 1 seq_cst
  br label %sleep.look
sleep.look:
  %found = load atomic i32, ptr @pool_generation seq_cst, align 4
  %called = icmp ne i32 %found, %last
  br i1 %called, label %awake, label %sleep.wait
sleep.wait:
  call void @pool_wait(ptr @pool_generation, i32 %last)
  br label %sleep.look
awake:
  atomicrmw sub ptr @pool_sleepers, i32 1 seq_cst
  br label %work
work:
  %current = phi i32 [ %seen, %look ], [ %found, %awake ]
  %slept = phi i1 [ false, %look ], [ true, %awake ]
  %patience.next = call i64 @pool_patience_after(i64 %patience, i1 %slept)
  %function = load ptr, ptr @pool_job, align 8
  %context = load ptr, ptr getelementptr (%pool_job, ptr @pool_job, i64 0, i32 1), align 8
  %threads = load i64, ptr getelementptr (%pool_job, ptr @pool_job, i64 0, i32 2), align 8
  %wanted = icmp slt i64 %index, %threads
  br i1 %wanted, label %run, label %finish.first
run:
  call void %function(ptr %context, i64 %index, i64 %threads)
  br label %finish.first
finish.first:
  %before = atomicrmw sub ptr @pool_remaining, i32 1 seq_cst
  %is.last = icmp eq i32 %before, 1
  br i1 %is.last, label %finish, label %tell
finish:
  %waiting = load atomic i32, ptr @pool_waiting seq_cst, align 4
  %waited.for = icmp ne i32 %waiting, 0
  br i1 %waited.for, label %tell.caller, label %idle
tell.caller:
  call void @pool_wake(ptr @pool_remaining)
  br label %tell
tell:
  br label %idle
}

define void @weft_pool_reset() nounwind {
  store i64 0, ptr @pool_workers, align 8
  store atomic i32 0, ptr @pool_sleepers seq_cst, align 4
  store atomic i32 0, ptr @pool_remaining seq_cst, align 4
  store atomic i32 0, ptr @pool_waiting seq_cst, align 4
  store atomic i32 0, ptr @pool_lock seq_cst, align 4
  ret void
}
"""


def has_own_pool(triple: str) -> bool:
    """Whether the pool can be made for a system: futexes are Linux's."""
    return "linux" in triple and triple.partition("-")[0] in _FUTEX


def thread_pool(triple: str) -> str:
    """The LLVM IR of the pool's functions, for a module of this triple."""
    processor = triple.partition("-")[0]
    filled = {
        "signals": "\\FF" * 128,
        "futex": str(_FUTEX[processor]),
        "pause": _PAUSE[processor],
        "declared": _PAUSE[processor].replace(" 1)", ")"),
        "least": str(_LEAST_LOOKS),
        "most": str(_MOST_LOOKS),
        "more": str(_MORE_LOOKS),
    }
    text = _TEXT
    for name, value in filled.items():
        text = text.replace(f"{{{name}}}", value)
    return text
