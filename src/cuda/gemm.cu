#include "cuda/device.h"
#include "cuda/gemm.h"
#include "cuda/gemm_product.h"

namespace calla::cuda {
namespace {

bool is_hopper() {
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the device");
  return major == 9;
}

template <Epilogue epilogue>
void launch(const Product& product, cudaStream_t stream) {
  if (is_hopper()) {
    launch_wgmma<epilogue>(product, stream);
  } else {
    launch_mma<epilogue>(product, stream);
  }
}

Product of_matrix(const Tiles& w, const __half* x, int tokens) {
  Product product;
  product.weights = w.data;
  product.rows = w.rows;
  product.groups = tiles_of_columns(w.columns);
  product.x = x;
  product.tokens = tokens;
  product.split = w.rows;
  return product;
}

Product of_experts(const TileStack& w, const __half* x, const RouteTiles& routes) {
  Product product = of_matrix({.data = w.data, .rows = w.rows, .columns = w.columns}, x, 0);
  product.expert_bytes = tiled_bytes(w.rows, w.columns);
  product.matrices = w.experts;
  product.tiles = routes.tiles;
  product.tile_count = routes.count;
  product.queue = routes.queue;
  return product;
}

void launch_swiglu(Product product, __half* inner, cudaStream_t stream) {
  product.y = inner;
  product.stride = product.rows / 2;
  launch<Epilogue::swiglu>(product, stream);
}

void launch_answers(Product product, __half* answers, cudaStream_t stream) {
  product.y = answers;
  product.stride = product.rows;
  product.scale = answer_scale / inner_scale;
  launch<Epilogue::store>(product, stream);
}

}  // namespace

void project(const Tiles& w, const __half* x, int tokens, const Projected& to, cudaStream_t stream) {
  Product product = of_matrix(w, x, tokens);
  product.y = to.y;
  product.stride = to.stride;
  if (to.tail != nullptr) {
    product.tail = to.tail;
    product.split = to.split;
  }
  launch<Epilogue::store>(product, stream);
}

void project_add(const Tiles& w, const __half* x, int tokens, float* residual, cudaStream_t stream) {
  Product product = of_matrix(w, x, tokens);
  product.residual = residual;
  launch<Epilogue::add>(product, stream);
}

void project_swiglu(const Tiles& w, const __half* x, int tokens, __half* inner, cudaStream_t stream) {
  launch_swiglu(of_matrix(w, x, tokens), inner, stream);
}

void project_answers(const Tiles& w, const __half* inner, int tokens, __half* answers, cudaStream_t stream) {
  launch_answers(of_matrix(w, inner, tokens), answers, stream);
}

void experts_swiglu(const TileStack& w, const __half* x, const RouteTiles& routes, __half* inner,
                    cudaStream_t stream) {
  Product product = of_experts(w, x, routes);
  product.sources = routes.tokens;
  launch_swiglu(product, inner, stream);
}

void experts_answers(const TileStack& w, const __half* inner, const RouteTiles& routes, __half* answers,
                     cudaStream_t stream) {
  launch_answers(of_experts(w, inner, routes), answers, stream);
}

}  // namespace calla::cuda
