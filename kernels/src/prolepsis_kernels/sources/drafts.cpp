// What proposing does in native calls: the suffix index and its trees, and merged drafts.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "merge.h"
#include "suffix.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  using suffix::SequenceIndex, suffix::SharedIndex;
  py::class_<SequenceIndex>(m, "SequenceIndex")
      .def(py::init<bool>(), py::arg("searches_own") = true)
      .def("__len__", &SequenceIndex::num_tokens)
      .def("give", &SequenceIndex::give)
      .def("follow_given", &SequenceIndex::follow_given)
      .def_property_readonly("goes_on", &SequenceIndex::goes_on);
  py::class_<SharedIndex>(m, "SharedIndex")
      .def(py::init<int64_t>())
      .def("add", &SharedIndex::add)
      .def_property_readonly("num_bytes", &SharedIndex::num_bytes)
      .def_property_readonly("num_tokens", &SharedIndex::num_tokens);
  m.def("propose", &suffix::propose);
  m.def("merge", [](const std::vector<int64_t>& tokens, const std::vector<int64_t>& parents, const std::vector<double>& survival,
                    const std::vector<int64_t>& other_tokens, const std::vector<int64_t>& other_parents,
                    const std::vector<double>& other_survival, int64_t limit) {
    return merging::merge({tokens, parents, survival}, {other_tokens, other_parents, other_survival}, limit);
  });
}
