// Python's view of the decoder, of its packed linear alone, and of its cache.
#include "decoder.h"
#include "team_handle.h"

namespace {

// The few-row linear alone, for forwards that are not ours: x [M, K] bf16 times packed weights, any M. It runs on torch's
// own threads, as its neighbours do (the OpenMP symbols resolve to the runtime that torch has loaded).
Tensor linear(const Tensor& x, const Tensor& packed, int64_t columns, const std::optional<Tensor>& bias) {
  const int64_t depth = packed.size(1) * 2, M = x.size(0), tasks = packed.size(0) / 2;
  const Tensor input = x.size(1) == depth ? x.contiguous() : at::constant_pad_nd(x, {0, depth - x.size(1)});
  Tensor out = at::empty({M, columns}, at::kFloat);
  float* to = out.data_ptr<float>();
  const float* offset = floats(bias);
#pragma omp parallel num_threads(at::get_num_threads())
  {
    alignas(64) float c[32 * kTask];
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; task++)
      task_product(bits(input), depth, M, bits(packed) + task * kTask * depth, depth, c, [&](int64_t first, int rows, const float* sums) {
        const int64_t begin = task * kTask, end = std::min(columns, begin + kTask);
        for (int r = 0; r < rows; r++)
          for (int64_t n = begin; n < end; n++)
            to[(first + r) * columns + n] = sums[r * kTask + n - begin] + (offset ? offset[n] : 0.0f);
      });
#ifdef PROLEPSIS_AMX
    amx::release();
#endif
  }
  return out;
}

// Moves K/V of one sequence between slots in all layers; cache [layers, pages, kv_heads, 2 * 32 * d].
void move_slots(const Tensor& cache, const std::vector<int64_t>& pages, const std::vector<std::pair<int64_t, int64_t>>& moves) {
  const PageLayout layout{cache.size(3) / (2 * kPage)};
  for (int64_t l = 0; l < cache.size(0); l++)
    for (int64_t h = 0; h < cache.size(2); h++)
      for (const auto& [from, to] : moves) {
        const bf16* a = bits(cache) + l * cache.stride(0) + pages[from / kPage] * cache.stride(1) + h * cache.stride(2);
        bf16* b = bits(cache) + l * cache.stride(0) + pages[to / kPage] * cache.stride(1) + h * cache.stride(2);
        for (int64_t i = 0; i < layout.head_dim; i++) {
          b[layout.key(to % kPage, i)] = a[layout.key(from % kPage, i)];
          b[layout.value(to % kPage, i)] = a[layout.value(from % kPage, i)];
        }
      }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using Release = pybind11::call_guard<pybind11::gil_scoped_release>;
  m.def("pack", &pack);
  m.def("huge_zeros", [](const std::vector<int64_t>& sizes) { return huge_zeros(sizes); });
  m.def("linear", &linear, Release());
  m.def("move_slots", &move_slots, Release());
  pybind11::class_<TreeParams>(m, "TreeParams").def(pybind11::init<int64_t, int64_t, int64_t, double>());
  pybind11::class_<TreeSpec>(m, "TreeSpec").def(pybind11::init<int64_t, int64_t, double, double, int64_t, double, uint64_t, uint64_t>());
  pybind11::class_<DraftTree>(m, "DraftTree")
      .def_readonly("tokens", &DraftTree::tokens)
      .def_readonly("parents", &DraftTree::parents)
      .def_readonly("survival", &DraftTree::survival)
      .def_readonly("chances", &DraftTree::chances);
  pybind11::class_<Shape>(m, "Shape").def(
      pybind11::init<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double, float, float, float>());
  pybind11::class_<LayerShape>(m, "LayerShape")
      .def(pybind11::init([](int64_t rope, int64_t window, float scale, float cap, float residual_scale, bool gelu) {
        return LayerShape{rope, {scale, cap, window}, residual_scale, gelu};
      }));
  using Norm = std::optional<Tensor>;
  pybind11::class_<Norms>(m, "Norms").def(pybind11::init<Norm, Norm, Norm, Norm, Norm, Norm>());
  pybind11::class_<Decoder>(m, "Decoder")
      .def(pybind11::init<const Shape&, int, bool>())
      .def("add_rope", &Decoder::add_rope)
      .def("add_layer", &Decoder::add_layer)
      .def("set_ends", &Decoder::set_ends)
      .def("weight_bytes", &Decoder::weight_bytes)
      .def_property_readonly("team", [](const Decoder& decoder) { return handle_of(decoder.team()); })
      .def("forward", &Decoder::forward, Release())
      .def("make_head", &Decoder::make_head)
      .def("make_exit", &Decoder::make_exit)
      .def("set_fusion", &Decoder::set_fusion)
      .def("set_output", &Decoder::set_output)
      .def("take_output", &Decoder::take_output)
      .def("output_rows", &Decoder::output_rows)
      .def("set_levels", &Decoder::set_levels)
      .def("look_ahead", &Decoder::look_ahead, Release())
      .def("follow", &Decoder::follow, Release())
      .def("top_k", &Decoder::top_k, Release())
      .def("trees", &Decoder::trees, Release())
      .def("draft", &Decoder::draft, Release());
}
