// Threads and threadgroups of the decode kernels that stream weights, for the host and the kernels. R of the
// names in the left column is the number of rows, 1, 2 or 4.
//
//   embed            grid (hidden / embed_columns, R)
//   last_row         grid (hidden / embed_columns)
//   project_R        grid (ends[3] / project_rows), which divides all ends
//   delta_out_R      grid (hidden / mixer_out_rows)
//   attention_out_R  the same
//   router_R         grid ((experts + 1) / router_rows, rounded up)
//   shared_up_R      grid (shared_hidden / shared_up_rows)
//   experts_up       grid (expert_hidden / experts_up_rows, experts_per_token, R)
//   experts_down     grid (hidden / experts_down_rows, R)
//   head_R           grid (vocabulary / head_rows)
#pragma once

namespace calla_kernels {

enum : unsigned {
  embed_threads = 32,  // of last_row too
  embed_columns = 256,
  project_threads = 64,
  project_rows = 8,
  mixer_out_threads = 128,
  mixer_out_rows = 8,  // and experts_down_rows: as many as square_columns
  router_threads = 64,
  router_rows = 2,
  shared_up_threads = 64,
  shared_up_rows = 2,
  experts_up_threads = 64,
  experts_up_rows = 8,
  experts_down_threads = 96,
  experts_down_rows = 8,
  head_threads = 128,
};

}  // namespace calla_kernels
