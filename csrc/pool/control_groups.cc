#include "pool/control_groups.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "pool/threads.h"

namespace pool {
namespace {

namespace fs = std::filesystem;

/// Whether a list such as "rw,cpu,cpuacct" has `name`.
bool Lists(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

/// This process's group in the hierarchy of a controller (version 1), or in the
/// one hierarchy of version 2, which /proc/self/cgroup lists with number 0 and
/// without controllers: "0::/a/b".
fs::path OwnGroup(const fs::path& root, bool is_version_2,
                  std::string_view controller) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (is_version_2 ? line.starts_with("0::") : Lists(controllers, controller))
      return line.substr(second + 1);
  }
  return {};
}

/// The CPUs that the quota of one group allows; infinity if there is none.
double Quota(const fs::path& group) {
  double quota = 0.0;
  double period = 0.0;
  // Version 2: "max 100000" or "50000 100000". Reading "max" fails.
  std::ifstream(group / "cpu.max") >> quota >> period;
  if (quota <= 0 || period <= 0) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;  // -1: none
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (quota > 0 && period > 0) return quota / period;
  return std::numeric_limits<double>::infinity();
}

}  // namespace

std::vector<fs::path> ControlGroups(std::string_view controller,
                                    const fs::path& root) {
  std::vector<fs::path> groups;
  // "32 31 0:29 /job /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu": the fourth
  // field is the group that is mounted at the place in the fifth.
  std::ifstream mounts(root / "proc/self/mountinfo");
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream before(line.substr(0, line.find(" - ")));
    std::istringstream after(
        line.substr(std::min(line.find(" - ") + 3, line.size())));
    std::string skipped, mounted, place, type, source, options;
    before >> skipped >> skipped >> skipped >> mounted >> place;
    after >> type >> source >> options;
    const bool is_version_2 = type == "cgroup2";
    if (!is_version_2 && (type != "cgroup" || !Lists(options, controller)))
      continue;
    fs::path inside =
        OwnGroup(root, is_version_2, controller).lexically_relative(mounted);
    // A group outside of the mounted one cannot be read.
    if (inside.empty() || *inside.begin() == "..") inside = ".";
    const fs::path top = root / fs::path(place).relative_path();
    for (; inside != "." && !inside.empty(); inside = inside.parent_path()) {
      groups.push_back(top / inside);
    }
    groups.push_back(top);
  }
  return groups;
}

int UsableCpus(const fs::path& root) {
  const auto allowed = static_cast<double>(AllowedCpus().size());
  double usable = allowed;
  for (const fs::path& group : ControlGroups("cpu", root)) {
    usable = std::min(usable, std::ceil(Quota(group)));
  }
  return static_cast<int>(usable);
}

}  // namespace pool
