#include "metal/simulator/threadgroup.h"

namespace calla::metal::simulation {

constinit thread_local Thread* current = nullptr;

bool meet(Thread& thread, Meeting meeting, unsigned order, Site site) {
  return thread.machine->meet(thread, meeting, order, site);
}

void* threadgroup_array(unsigned bytes, unsigned alignment, Site site) {
  return current->machine->threadgroup_array(*current, bytes, alignment, site);
}

unsigned long threadgroup_random() { return current->machine->threadgroup_random(); }

unsigned long error_seed() { return current->machine->error_seed(); }

void report(const char* what, unsigned long value, Site site) { current->machine->report(what, value, site); }

void position(const Thread& thread, Attribute attribute, unsigned (&values)[3]) {
  const Place& place = thread.machine->place();
  values[0] = values[1] = values[2] = 0;
  switch (attribute) {
    case Attribute::buffer:
      break;
    case Attribute::thread_position_in_grid:
      for (int i = 0; i < 3; ++i) values[i] = place.group[i];
      values[0] = place.group[0] * place.threads + thread.index;
      break;
    case Attribute::threads_per_grid:
      for (int i = 0; i < 3; ++i) values[i] = place.groups[i];
      values[0] = place.groups[0] * place.threads;
      break;
    case Attribute::threadgroup_position_in_grid:
      for (int i = 0; i < 3; ++i) values[i] = place.group[i];
      break;
    case Attribute::threadgroups_per_grid:
      for (int i = 0; i < 3; ++i) values[i] = place.groups[i];
      break;
    case Attribute::thread_position_in_threadgroup:
    case Attribute::thread_index_in_threadgroup:
      values[0] = thread.index;
      break;
    case Attribute::threads_per_threadgroup:
      values[0] = place.threads;
      values[1] = values[2] = 1;
      break;
    case Attribute::simdgroup_index_in_threadgroup:
      values[0] = thread.group->index;
      break;
    case Attribute::simdgroups_per_threadgroup:
      values[0] = place.threads / simd_width;
      break;
    case Attribute::thread_index_in_simdgroup:
      values[0] = thread.lane;
      break;
    case Attribute::threads_per_simdgroup:
      values[0] = simd_width;
      break;
  }
}

}  // namespace calla::metal::simulation
