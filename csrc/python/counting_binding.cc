// _CountingEnvSpec and _CountingEnvPool: the pool and the protocol with an
// environment whose results are known in advance, for tests and benches.
#include "pool/counting_env.h"
#include "python/envpool_protocol.h"

template <>
struct envpool_protocol::EnvTraits<pool::CountingEnv> {
  using Config = pool::CountingConfig;

  static std::shared_ptr<const pool::CountingEnv::Shared> MakeShared(
      Config config) {
    return std::make_shared<const pool::CountingEnv::Shared>(std::move(config));
  }

  static void AddStatus(const pool::CountingEnv::Shared&, pybind11::dict&) {}
};

void BindCounting(pybind11::module_& module) {
  envpool_protocol::Bind<pool::CountingEnv>(module, "_CountingEnvSpec",
                                            "_CountingEnvPool");
}
