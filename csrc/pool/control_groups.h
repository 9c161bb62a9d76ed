// Limits of a container or batch job: Linux control groups, versions 1 and 2.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace pool {

/// Folders of the control groups that limit this process by `controller` ("cpu"
/// or "memory"): its own group first, then the groups around it, as far as they
/// are mounted. Empty on systems without control groups. `root` is the folder
/// that has proc/ and the mount points, for tests.
std::vector<std::filesystem::path> ControlGroups(
    std::string_view controller, const std::filesystem::path& root = "/");

/// How many CPUs this process can keep busy: the CPUs that it may run on, or
/// the tightest quota of its control groups if that is less. A part of a CPU
/// counts as a whole one, because a thread more uses the part; at least 1.
int UsableCpus(const std::filesystem::path& root = "/");

}  // namespace pool
