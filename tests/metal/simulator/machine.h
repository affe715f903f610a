// What the shim of Metal's standard library asks of the machine that runs the kernels: meeting points,
// threadgroup memory and positions. Lean on purpose: every kernel's translation unit reads it.
#pragma once

/// For functions of the kernels' translation units that work on the simulator's own memory, which nobody need
/// watch.
#define CALLA_UNWATCHED __attribute__((no_sanitize("thread")))

namespace calla::metal::simulation {

inline constexpr unsigned simd_width = 32;
inline constexpr unsigned max_threads = 1024;
inline constexpr unsigned threadgroup_memory_limit = 32768;

/// Where in a kernel's source something was called.
struct Site {
  const char* file;
  unsigned line;
};

/// What threads meet at.
enum class Meeting : unsigned char {
  simd_function,
  simdgroup_barrier,
  threadgroup_barrier,
  threadgroup_function
};

/// Threads that meet in SIMD functions.
struct SimdGroup {
  // What the lanes give each other: two sets of places, because a lane may be at its next function before
  // another has read the results of the last one. It cannot be two ahead.
  alignas(64) unsigned char exchange[2][simd_width * 24];
  unsigned index;
  // The lanes run in the order (first + stride * i) % 32, i = 0, 1, ...; those before the running one have
  // arrived.
  unsigned first;
  unsigned stride;
  unsigned turn;
  unsigned arrived;
  unsigned finished;
  unsigned barriers[2];  // passed, by the memory that they order: device, threadgroup
  Meeting meeting;
  Site site;  // of the first that arrived
};

class Machine;

/// What can be switched to.
struct Fiber {
  void* context = nullptr;
};

/// One thread of the threadgroup that runs.
struct Thread : Fiber {
  unsigned index;  // in the threadgroup
  unsigned lane;
  unsigned meetings;     // SIMD functions so far
  unsigned memory_used;  // bytes of threadgroup memory declared so far
  unsigned memory_next;  // where the next array may begin
  SimdGroup* group;
  Machine* machine;
};

/// The thread that runs.
extern constinit thread_local Thread* current;

/// Waits until all threads of the meeting's scope have called this at the same site. True for the thread that
/// came last, which goes on before the others do. A barrier orders accesses to device memory (1), to
/// threadgroup memory (2), or to both.
bool meet(Thread& thread, Meeting meeting, unsigned order, Site site);

/// The threadgroup's memory for one more array: the same for all of its threads, which declare the same
/// arrays in the same order.
void* threadgroup_array(unsigned bytes, unsigned alignment, Site site);

/// A random number for a threadgroup: the same for all of its threads.
unsigned long threadgroup_random();

/// The seed of the errors of loose arithmetic.
unsigned long error_seed();

/// A fault that a kernel makes no address of, such as a shuffle from a lane that is none.
void report(const char* what, unsigned long value, Site site);

/// What a kernel's parameter is bound to, by its attribute.
enum class Attribute : unsigned char {
  buffer,
  thread_position_in_grid,
  threads_per_grid,
  threadgroup_position_in_grid,
  threadgroups_per_grid,
  thread_position_in_threadgroup,
  threads_per_threadgroup,
  thread_index_in_threadgroup,
  simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup,
  thread_index_in_simdgroup,
  threads_per_simdgroup,
};

/// The value of an attribute other than `buffer` for a thread: three numbers, or one.
void position(const Thread& thread, Attribute attribute, unsigned (&values)[3]);

/// A parameter of a kernel.
struct Parameter {
  Attribute attribute;
  unsigned slot;       // of a buffer
  const char* name;    // in the source
  bool writes;         // a buffer of values that are not const
  bool constants;      // a reference to a struct
  unsigned size;       // of a buffer's element
  unsigned alignment;  // of a buffer's element
};

/// A kernel as the tests' build compiled it.
struct Kernel {
  const char* name;
  const Parameter* parameters;
  unsigned parameter_count;
  void (*run)(const Thread& thread, void* const* buffers);
};

/// How kernels were compiled: as they are, with instrumentation of memory accesses, or with arithmetic as
/// inexact as a GPU's may be.
enum class Build : unsigned char { plain, checked, loose };

/// Makes a kernel known for a model's shape.
struct Registration {
  Registration(const char* shape, Build build, const Kernel& kernel);
};

}  // namespace calla::metal::simulation
