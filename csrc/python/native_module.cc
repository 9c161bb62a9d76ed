// trainer._native: encoders and gradient steps on arrays that the caller has
// allocated. Arrays are passed as addresses, which the trainer's modules check
// (models/native.py, learn/ppo.py, learn/optim.py). So PyTorch's
// headers are not needed; NumPy has no arrays of bfloat16.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/path.h"
#include "encoders/cnn.h"
#include "encoders/tiles.h"
#include "learner/clip.h"
#include "learner/head_loss.h"
#include "learner/muon.h"
#include "python/without_gil.h"

namespace py = pybind11;
using envpool_protocol::WithoutGil;

namespace {

template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

cpu::Path PathFromName(const std::string& name) {
  for (const cpu::Path path : encoders::kPaths) {
    if (name == cpu::Name(path) && cpu::Supports(path)) return path;
  }
  throw std::invalid_argument(
      "path '" + name +
      "' is not supported by this CPU, or not allowed by "
      "MARIO_CPU");
}

std::vector<std::string> Paths() {
  std::vector<std::string> names;
  for (const cpu::Path path : encoders::kPaths) {
    if (cpu::Supports(path)) names.emplace_back(cpu::Name(path));
  }
  return names;
}

encoders::CnnShape CnnShapeOf(const std::array<int, 10>& s) {
  const encoders::CnnShape shape{.channels = s[0],
                                 .height = s[1],
                                 .width = s[2],
                                 .kernel1 = s[3],
                                 .stride1 = s[4],
                                 .channels1 = s[5],
                                 .kernel2 = s[6],
                                 .stride2 = s[7],
                                 .channels2 = s[8],
                                 .features = s[9]};
  if (!shape.Valid())
    throw std::invalid_argument(
        "there are no kernels for a network of this shape");
  return shape;
}

encoders::TilesShape TilesShapeOf(const std::array<int, 3>& s) {
  const encoders::TilesShape shape{
      .channels1 = s[0], .channels2 = s[1], .features = s[2]};
  if (!shape.Valid())
    throw std::invalid_argument(
        "there are no kernels for a network of this shape");
  return shape;
}

encoders::CnnWeights CnnWeightsOf(const std::array<uintptr_t, 6>& p) {
  return {At<float>(p[0]),
          At<float>(p[1]),
          {At<float>(p[2]), At<float>(p[3]), At<float>(p[4]), At<float>(p[5])}};
}

encoders::CnnGradients CnnGradientsOf(const std::array<uintptr_t, 6>& p) {
  return {At<float>(p[0]),
          At<float>(p[1]),
          {At<float>(p[2]), At<float>(p[3]), At<float>(p[4]), At<float>(p[5])}};
}

encoders::TilesWeights TilesWeightsOf(const std::array<uintptr_t, 7>& p,
                                      uintptr_t scales) {
  return {At<float>(p[0]),
          At<float>(p[1]),
          At<float>(p[2]),
          At<float>(scales),
          {At<float>(p[3]), At<float>(p[4]), At<float>(p[5]), At<float>(p[6])}};
}

encoders::TilesGradients TilesGradientsOf(const std::array<uintptr_t, 7>& p) {
  return {At<float>(p[0]),
          At<float>(p[1]),
          At<float>(p[2]),
          {At<float>(p[3]), At<float>(p[4]), At<float>(p[5]), At<float>(p[6])}};
}

learner::HeadWeights HeadWeightsOf(const std::array<uintptr_t, 6>& p) {
  return {At<float>(p[0]), At<float>(p[1]), At<float>(p[2]),
          At<float>(p[3]), At<float>(p[4]), At<float>(p[5])};
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() =
      "Encoders and gradient steps on a CPU. Arguments are addresses.";
  module.def(
      "paths", &Paths,
      "Returns the instruction sets of this CPU that have kernels, the best "
      "one last.");
  module.def(
      "best_path",
      []() -> std::optional<std::string> {
        const cpu::Path best = cpu::Best(encoders::kPaths);
        const bool is_slow = best == cpu::Path::kScalar;
        if (is_slow && !cpu::IsChosen()) return {};
        return cpu::Name(best);
      },
      "Returns the instruction set to use; None where PyTorch is faster.");
  module.def("cnn_valid", [](const std::array<int, 10>& s) {
    try {
      CnnShapeOf(s);
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  });
  module.def("cnn_forward",
             [](const std::array<int, 10>& shape, const std::string& path,
                int64_t rows, uintptr_t pixels,
                const std::array<uintptr_t, 6>& weights, uintptr_t maps,
                uintptr_t x, uintptr_t y) {
               const auto s = CnnShapeOf(shape);
               const auto p = PathFromName(path);
               WithoutGil([&] {
                 encoders::CnnForward(s, p, rows, At<uint8_t>(pixels),
                                      CnnWeightsOf(weights), At<uint16_t>(maps),
                                      At<uint16_t>(x), At<float>(y));
               });
             });
  module.def(
      "cnn_backward",
      [](const std::array<int, 10>& shape, const std::string& path,
         int64_t rows, uintptr_t pixels,
         const std::array<uintptr_t, 6>& weights, uintptr_t maps, uintptr_t x,
         uintptr_t y, uintptr_t dy, const std::array<uintptr_t, 6>& gradients) {
        const auto s = CnnShapeOf(shape);
        const auto p = PathFromName(path);
        WithoutGil([&] {
          encoders::CnnBackward(s, p, rows, At<uint8_t>(pixels),
                                CnnWeightsOf(weights), At<uint16_t>(maps),
                                At<uint16_t>(x), At<float>(y), At<float>(dy),
                                CnnGradientsOf(gradients));
        });
      });
  module.def(
      "tiles_forward",
      [](const std::array<int, 3>& shape, const std::string& path, int64_t rows,
         uintptr_t frames, const std::array<uintptr_t, 7>& weights,
         uintptr_t scales, uintptr_t maps, uintptr_t x, uintptr_t y) {
        const auto s = TilesShapeOf(shape);
        const auto p = PathFromName(path);
        WithoutGil([&] {
          if (!encoders::ValidCodes(rows, At<uint8_t>(frames))) {
            throw py::index_error("a tile code is above 31; codes are 0 to 31");
          }
          encoders::TilesForward(
              s, p, rows, At<uint8_t>(frames), TilesWeightsOf(weights, scales),
              At<uint16_t>(maps), At<uint16_t>(x), At<float>(y));
        });
      });
  module.def(
      "tiles_backward",
      [](const std::array<int, 3>& shape, const std::string& path, int64_t rows,
         uintptr_t frames, const std::array<uintptr_t, 7>& weights,
         uintptr_t scales, uintptr_t maps, uintptr_t x, uintptr_t y,
         uintptr_t dy, const std::array<uintptr_t, 7>& gradients) {
        const auto s = TilesShapeOf(shape);
        const auto p = PathFromName(path);
        WithoutGil([&] {
          encoders::TilesBackward(
              s, p, rows, At<uint8_t>(frames), TilesWeightsOf(weights, scales),
              At<uint16_t>(maps), At<uint16_t>(x), At<float>(y), At<float>(dy),
              TilesGradientsOf(gradients));
        });
      });
  module.def("decide", [](const std::array<int, 3>& shape,
                          const std::array<uintptr_t, 6>& weights, int64_t rows,
                          uintptr_t features, uintptr_t levels, uintptr_t noise,
                          int64_t version, uintptr_t records) {
    WithoutGil([&] {
      learner::Decide({shape[0], shape[1], shape[2]}, HeadWeightsOf(weights),
                      rows, At<float>(features), At<int64_t>(levels),
                      At<float>(noise), version, At<std::byte>(records));
    });
  });
  module.def(
      "ppo_head_loss",
      [](const std::array<int, 3>& shape,
         const std::array<uintptr_t, 6>& weights,
         const std::tuple<float, float, float, bool, bool>& options,
         const std::array<uintptr_t, 7>& targets, uintptr_t rows, int64_t size,
         int64_t first, int64_t count, uintptr_t features, uintptr_t d_features,
         const std::array<uintptr_t, 4>& gradients) {
        learner::LossTerms terms;
        WithoutGil([&] {
          terms = learner::HeadLoss(
              {shape[0], shape[1], shape[2]}, HeadWeightsOf(weights),
              {std::get<0>(options), std::get<1>(options), std::get<2>(options),
               std::get<3>(options), std::get<4>(options)},
              {At<int64_t>(targets[0]), At<int64_t>(targets[1]),
               At<float>(targets[2]), At<float>(targets[3]),
               At<float>(targets[4]), At<float>(targets[5]),
               At<float>(targets[6])},
              {At<int64_t>(rows), size}, first, count, At<float>(features),
              At<float>(d_features),
              {At<float>(gradients[0]), At<float>(gradients[1]),
               At<float>(gradients[2]), At<float>(gradients[3])});
        });
        return std::array<double, 6>{terms.total, terms.policy,
                                     terms.value, terms.entropy,
                                     terms.kl,    terms.clipped};
      });
  module.def(
      "clip_norm",
      [](const std::vector<std::array<int64_t, 2>>& gradients, float max_norm) {
        std::vector<learner::Numbers> parts;
        for (const auto& [address, size] : gradients) {
          parts.push_back({At<float>(address), size});
        }
        return learner::ClipNorm(parts, max_norm);
      });
  module.def("muon_scratch", &learner::MuonScratch);
  module.def(
      "muon_step", [](const std::string& path,
                      const std::vector<std::array<int64_t, 5>>& tensors,
                      const std::array<float, 3>& options, uintptr_t scratch) {
        const auto p = PathFromName(path);
        WithoutGil([&] {
          for (const auto& [rows, columns, weights, gradients, momentum] :
               tensors) {
            learner::MuonStep(p,
                              {rows, columns, At<float>(weights),
                               At<float>(gradients), At<float>(momentum)},
                              {options[0], options[1], options[2]},
                              At<float>(scratch));
          }
        });
      });
}
