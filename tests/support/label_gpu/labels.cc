// Tensors that say cuda:0 over CPU memory, for a PyTorch without CUDA.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

// Of Python, whose headers may be missing.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int state);
void PyErr_Fetch(void** type, void** value, void** trace);
void PyErr_Restore(void* type, void* value, void* trace);
}

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;
const c10::Device kGpu(kCuda, 0);

// Autograd asks for the device and a stream; those of the trainer are Python's.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kCuda> {
  c10::Device exchangeDevice(c10::Device) const override { return kGpu; }
  c10::Device getDevice() const override { return kGpu; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kGpu);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kGpu);
  }
};

// The CPU memory behind a label, and the number of its block.
struct Owner {
  c10::Storage memory;
  int64_t block;
};

void (*on_death)(int64_t block);

void Delete(void* context) {
  auto* owner = static_cast<Owner*>(context);
  const int64_t block = owner->block;
  delete owner;
  // The block may die while Python raises an exception, which must survive.
  const int state = PyGILState_Ensure();
  void *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  on_death(block);
  PyErr_Restore(type, value, trace);
  PyGILState_Release(state);
}

at::Tensor View(c10::Storage memory, const at::Tensor& shape,
                c10::DispatchKey key) {
  auto tensor = c10::make_intrusive<c10::TensorImpl>(
      std::move(memory), c10::DispatchKeySet(key), shape.dtype());
  tensor->set_sizes_and_strides(shape.sizes(), shape.strides(),
                                shape.storage_offset());
  return at::Tensor(std::move(tensor));
}

const Owner& OwnerOf(const at::Tensor& label) {
  return *static_cast<Owner*>(label.storage().data_ptr().get_context());
}

at::Tensor Label(const at::Tensor& cpu, int64_t block) {
  const c10::Storage& memory = cpu.storage();
  c10::DataPtr data(memory.mutable_data(), new Owner{memory, block}, &Delete,
                    kGpu);
  return View(
      {c10::Storage::use_byte_size_t(), memory.nbytes(), std::move(data)}, cpu,
      c10::DispatchKey::CUDA);
}

}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

namespace at {
struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

TORCH_LIBRARY(label_gpu, library) {
  library.def("label", &Label);
  library.def("view_of", [](const at::Tensor& label, const at::Tensor& cpu) {
    return View(label.storage(), cpu, c10::DispatchKey::CUDA);
  });
  library.def("memory", [](const at::Tensor& label) {
    return View(OwnerOf(label).memory, label, c10::DispatchKey::CPU);
  });
  library.def("block",
              [](const at::Tensor& label) { return OwnerOf(label).block; });
}

extern "C" void set_on_death(void (*call)(int64_t)) { on_death = call; }
