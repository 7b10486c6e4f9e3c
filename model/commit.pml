// How ranks on several hosts commit a step, stop, plan and go on. model/run has spin search all that may happen.
//
// What it models. Each rank is alone on its host. Its buddy is the next rank. In step n a rank does this:
//   begin    it gives its gradients to the sum;
//   stage    it has the gradients of all, stages n, and sends its staged state to its buddy;
//   arrive   the buddy has said that it holds this state, so the rank arrives at the commit barrier;
//   commit   it has heard that all have arrived, so it makes the update.
// The barrier is not atomic: a rank may be stopped before it hears of the last arrival, while another commits. After a
// fault the scheduler raises the generation, all ranks park, and a successor takes the place of a dead one. When all are
// parked, the scheduler plans the greatest version that any rank has committed. Each rank gets there by its staged step, or
// by a copy of what its buddy holds. Each buddy holds its ward's state again. Then all resume.
//
// Faults. A process dies: its host keeps the state. A host dies: the state of its rank is lost, and so is what it holds for
// its ward. All are stopped without a death: a false suspicion, or a scheduler that began anew.
//
// What it mirrors. docs/protocol/recovery.md: "Which version", P2, P15, P16, P18, P20 and P21. The scheduler stands for
// core/controller and core/planner, a rank for core/member and its arena. Buddies, and barriers that are not atomic, are not
// built yet. What is built stands on one host, where the barrier is atomic and the arena survives.
//
// What it leaves out. The journal (P1 to P5), leases and agents: bin/sim runs those. An update or a copy that is cut
// short: arena/crash_test does that. A rank that ends its training early. A fenced process that runs on after its successor
// came: it can only speak in its old generation, and what is said there may be heard at any later time in the model too.
//
// How. What is said is kept by generation and speaker, and is never withdrawn. Who is told reads it at any time, or never. So
// any message may be late, may be overtaken, or may be lost with the one that should hear it. A rank's report is read when
// all are parked, because a parked rank's state does not change.

#ifndef RANKS
#define RANKS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef FORGET  // Whether what was said in a generation that all have left is forgotten. Nobody may hear it any more, so this
#define FORGET 1  // changes nothing but the number of states: ten times fewer and more.
#endif

// The rules. model/run breaks each in turn, and asks spin to find what goes wrong.
#ifndef ARRIVE_WHEN_HELD        // A rank arrives after its buddy's word, not before.
#define ARRIVE_WHEN_HELD 1
#endif
#ifndef BUDDY_KEEPS_BASE        // A buddy keeps the version before the staged one as well.
#define BUDDY_KEEPS_BASE 1
#endif
#ifndef STOPPED_KEEPS_STAGED    // Who is stopped keeps what it staged.
#define STOPPED_KEEPS_STAGED 1
#endif
#ifndef ONLY_OWN_GENERATION     // What an old generation sends counts for nothing.
#define ONLY_OWN_GENERATION 1
#endif
#ifndef RESUME_WHEN_HELD        // All resume only when each buddy holds its ward's state again.
#define RESUME_WHEN_HELD 1
#endif

#define NONE 15   // No version: the state is lost.
#define WRONG 14  // Bits that the undisturbed run does not have.
#define GENERATIONS (FAULTS + 2)
#define BUDDY(r) ((r + 1) % RANKS)
#define WARD(r) ((r + RANKS - 1) % RANKS)
#define AT(g, r) ((g) * RANKS + (r))

#if RANKS == 2
#define ALL(P) (P(0) && P(1))
#elif RANKS == 3
#define ALL(P) (P(0) && P(1) && P(2))
#else
#define ALL(P) (P(0) && P(1) && P(2) && P(3))
#endif
#define ANY(P) (!ALL(!P))

mtype = { running, parked, gone };

// A rank: its process, and its host's memory. `bits` is n if the state is that of version n in the undisturbed run.
mtype phase[RANKS] = running;
byte mine[RANKS] = 1;      // The generation that its process is in.
byte version[RANKS] = 0;   // Committed.
byte bits[RANKS] = 0;
byte staged[RANKS] = 0;    // version, or version + 1.
byte sum[RANKS] = 0;       // n: the gradients' memory has the complete sum of step n; 0: not a complete one.
byte older[RANKS] = 0;     // What the host holds for its ward: two versions, or one twice.
byte newer[RANKS] = 0;

// What was said in each generation: the greatest step of which the rank said it; 0: nothing.
byte begun[GENERATIONS * RANKS] = 0;    // Here are my gradients.
byte sent[GENERATIONS * RANKS] = 0;     // To the buddy: hold this.
byte held[GENERATIONS * RANKS] = 0;     // From the rank's buddy: it is held.
byte arrived[GENERATIONS * RANKS] = 0;  // At the commit barrier.
byte first[GENERATIONS] = 0;            // The version that the generation resumed at.

// The scheduler.
byte generation = 1;
byte resumed = 1;  // The newest generation that Resume was said for.
byte plan = NONE;  // The version that all are to reach; NONE: not planned yet.
byte faults = FAULTS;
bit over = 0;  // All have made all steps.
bit lost = 0;  // A rank's state is lost for good.

// For the checks alone.
byte committed = 0;         // The greatest version that any rank ever committed.
bit own_lost[RANKS] = 0;    // Since the last Resume a host's loss took the rank's own state,
bit ward_lost[RANKS] = 0;   // and what the rank held for its ward.

// Whether rank r may act on what rank o said of step n. A message carries no step, only its number in its generation. So who
// listens to an old generation takes the k-th step there for the k-th step here. (Broken, for two faults at most.)
#define SAID(what, o, n) (what[AT(mine[r], o)] >= (n))
#if ONLY_OWN_GENERATION
#define HEARD(what, o, n) SAID(what, o, n)
#define SUMMED(o) (true)  // The gradients of o are those of the step that r makes.
#else
#define SAID_IN(g, what, o, n) \
  (g < mine[r] && what[AT(g, o)] > 0 && what[AT(g, o)] - first[g] >= (n) - first[mine[r]])
#define HEARD(what, o, n) (SAID(what, o, n) || SAID_IN(1, what, o, n) || SAID_IN(2, what, o, n))
#define SAME_IN(g, o) (SAID_IN(g, begun, o, NEXT) && first[g] == first[mine[r]])
#define SUMMED(o) (SAID(begun, o, NEXT) || SAME_IN(1, o) || SAME_IN(2, o))
#endif

#define NEXT (version[r] + 1)
#define TRAINS (phase[r] == running && version[r] < STEPS)
#define HAS_BEGUN(o) HEARD(begun, o, NEXT)
#define HAS_ARRIVED(o) HEARD(arrived, o, NEXT)

// The step that a buddy is to hold next for its ward.
#define HELD_LAST (held[AT(mine[r], WARD(r))] > 0 -> held[AT(mine[r], WARD(r))] : first[mine[r]])
#define HOLDS(b, v) (older[b] == (v) || newer[b] == (v))

// In a recovery.
#define IS_PARKED(o) (phase[o] == parked && mine[o] == generation)
#define REPAIRS (plan != NONE && resumed < generation && IS_PARKED(r))
#define CAN_REACH(o) (version[o] == plan || staged[o] == plan || HOLDS(BUDDY(o), plan))
#define GOES_NOT_BACK(o) (version[o] == NONE || version[o] <= plan)
#define MAY_BE_LOST(o) (own_lost[o] && ward_lost[BUDDY(o)])
#define IS_AT_PLAN(o) (version[o] == plan)
#define IS_HELD_AT_PLAN(o) HOLDS(BUDDY(o), plan)
#define IS_DONE(o) (phase[o] == running && mine[o] == generation && version[o] == STEPS)

// If rank r commits, every copy that is left can make that step: each rank has it staged or made, each buddy holds it.
#define HAS_STAGED(o) (version[o] == NONE || staged[o] >= version[r])
#define IS_HELD(o) (newer[BUDDY(o)] == NONE || newer[BUDDY(o)] >= version[r])

inline update(r, n) {
  bits[r] = (bits[r] == n - 1 && sum[r] == n -> n : WRONG);
  assert(bits[r] == n);
  version[r] = n
}

proctype Rank(byte r) {
  do
  // A step.
  :: d_step { TRAINS && begun[AT(mine[r], r)] < NEXT ->
      begun[AT(mine[r], r)] = NEXT;
      staged[r] = version[r];  // Before the gradients' memory is written: a voided step is made again.
      sum[r] = 0 }
  :: d_step { TRAINS && begun[AT(mine[r], r)] == NEXT && staged[r] == version[r] && ALL(HAS_BEGUN) ->
      sum[r] = (ALL(SUMMED) -> NEXT : WRONG);
      staged[r] = NEXT;
      sent[AT(mine[r], r)] = NEXT }
  :: d_step { TRAINS && staged[r] == NEXT && sent[AT(mine[r], r)] == NEXT && arrived[AT(mine[r], r)] < NEXT &&
      (!ARRIVE_WHEN_HELD || HEARD(held, r, NEXT)) ->
      arrived[AT(mine[r], r)] = NEXT }
  :: d_step { TRAINS && arrived[AT(mine[r], r)] == NEXT && ALL(HAS_ARRIVED) ->
      update(r, NEXT);
      committed = (version[r] > committed -> version[r] : committed);
      assert(mine[r] == generation || plan == NONE);  // Nobody makes a step while a newer generation plans.
      assert(ALL(HAS_STAGED));
      assert(!ARRIVE_WHEN_HELD || ALL(IS_HELD)) }
  // As a buddy.
  :: d_step { phase[r] == running && HELD_LAST < STEPS && HEARD(sent, WARD(r), HELD_LAST + 1) ->
      older[r] = (!BUDDY_KEEPS_BASE -> HELD_LAST + 1 : (HOLDS(r, HELD_LAST) -> HELD_LAST : NONE));
      newer[r] = HELD_LAST + 1;
      held[AT(mine[r], WARD(r))] = newer[r] }
  // A recovery.
  :: d_step { phase[r] == running && mine[r] < generation ->
      phase[r] = parked; mine[r] = generation;
      staged[r] = (STOPPED_KEEPS_STAGED -> staged[r] : version[r]) }
  :: d_step { phase[r] == parked && mine[r] < generation -> mine[r] = generation }
  :: d_step { phase[r] == gone && !lost -> phase[r] = parked; mine[r] = generation }  // The successor.
  :: d_step { REPAIRS && version[r] != plan && staged[r] == plan -> update(r, plan) }
  :: d_step { REPAIRS && version[r] != plan && staged[r] != plan && IS_PARKED(BUDDY(r)) && HOLDS(BUDDY(r), plan) ->
      version[r] = plan; staged[r] = plan; bits[r] = plan; sum[r] = 0 }
  :: d_step { REPAIRS && !HOLDS(r, plan) && IS_PARKED(WARD(r)) && version[WARD(r)] == plan ->
      older[r] = plan; newer[r] = plan }
  :: d_step { phase[r] == parked && mine[r] == generation && resumed == generation ->
      assert(version[r] == first[generation] && bits[r] == version[r]);
      phase[r] = running }
  :: over || lost -> break
  od
}

proctype Scheduler() {
  byte o;
  do
  :: d_step { resumed < generation && plan == NONE && ALL(IS_PARKED) && !lost ->
      for (o : 0 .. RANKS - 1) {
        plan = (version[o] != NONE && (plan == NONE || version[o] > plan) -> version[o] : plan)
      }
      o = 0;
      if
      :: plan != NONE && ALL(CAN_REACH) ->
        assert(ALL(GOES_NOT_BACK));
        assert(plan + 1 >= committed)  // A fault costs one step at most.
      :: else -> lost = 1; assert(ANY(MAY_BE_LOST))  // Only with a rank and its buddy.
      fi }
  :: d_step { resumed < generation && plan != NONE && ALL(IS_PARKED) && ALL(IS_AT_PLAN) &&
      (!RESUME_WHEN_HELD || ALL(IS_HELD_AT_PLAN)) ->
#if FORGET && ONLY_OWN_GENERATION
      for (o : 0 .. AT(generation, 0) - 1) {
        begun[o] = 0; sent[o] = 0; held[o] = 0; arrived[o] = 0
      }
#endif
      first[generation] = plan;
      resumed = generation;
      plan = NONE;
      for (o : 0 .. RANKS - 1) { own_lost[o] = 0; ward_lost[o] = 0 }
      o = 0 }
  :: d_step { ALL(IS_DONE) && !over -> over = 1 }
  :: over || lost -> break
  od
}

// At each fault all that was planned and not resumed is void.
inline stop() { faults--; generation++; plan = NONE }

proctype Faults() {
  byte r = 0;
  do
  :: atomic { faults > 0 && !over && !lost ->
      if
      :: r = 0
      :: r = 1
#if RANKS > 2
      :: r = 2
#endif
#if RANKS > 3
      :: r = 3
#endif
      fi;
      if
      :: phase[r] != gone -> phase[r] = gone  // Its process.
      :: true ->  // Its host.
        phase[r] = gone;
        version[r] = NONE; staged[r] = NONE; bits[r] = NONE; sum[r] = 0; older[r] = NONE; newer[r] = NONE;
        own_lost[r] = 1; ward_lost[r] = 1
      :: r == 0  // Nobody: all are stopped only.
      fi;
      stop();
      r = 0 }
  :: over || lost -> break
  od
}

init {
  atomic {
    byte r;
    for (r : 0 .. RANKS - 1) { run Rank(r) }
    run Scheduler();
    run Faults()
  }
}

// Whatever happens, the job makes all its steps or has lost a rank's state: nobody waits for ever.
ltl goes_on { <> (over || lost) }
