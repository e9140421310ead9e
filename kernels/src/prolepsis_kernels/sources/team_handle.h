// A team as Python passes it from one extension to another, whose copies of `Team` are compiled from the same source.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "threads.h"

using TeamHandle = std::optional<pybind11::capsule>;

inline pybind11::capsule handle_of(std::shared_ptr<Team> team) {
  return {new std::shared_ptr<Team>(std::move(team)), "prolepsis.team", [](void* held) { delete static_cast<std::shared_ptr<Team>*>(held); }};
}

// The team, which lives as long as the handle; null for none.
inline Team* team_of(const TeamHandle& handle) {
  return handle ? handle->get_pointer<std::shared_ptr<Team>>()->get() : nullptr;
}
